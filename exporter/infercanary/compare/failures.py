"""Whether more runs fail than before, which the latencies of the other runs cannot show. Pure."""

from __future__ import annotations

from infercanary.compare.recording import Attempts

# Fisher's exact test ("The Logic of Inductive Inference", 1935), one-sided: it works with any number of runs, also if
# none failed before. It assumes that runs fail independently, but a hang also fails the runs after it. Simulated with
# bursts of three failures, and 5 % of all runs failing on both sides, the false positive rate is 2 to 6 % at 0.001
# (5 to 11 % at 0.01; at 0.001 without bursts it is below 0.1 %). The other two limits exclude differences that are
# significant but small: among many runs the test would find a single hang.
_LEVEL = 0.001
_LEAST = 3
_LEAST_SHARE = 0.05


def rise(before: Attempts, after: Attempts | None) -> str:
    """Say that clearly more runs fail ``after`` than ``before``: ``40 of 50 runs failed, 0 of 200 before``.

    Args:
        before: Of the baseline.
        after: Of the candidate; None where it is not recorded.

    Returns:
        Empty without a clear rise, or where the input does not record failed runs.
    """
    if after is None or not before.begun or after.failed <= max(_LEAST - 1, _LEAST_SHARE * after.begun):
        return ""
    from scipy.stats import fisher_exact  # takes a second, and is rarely needed

    table = [[side.failed, side.begun - side.failed] for side in (after, before)]
    if fisher_exact(table, alternative="greater")[1] >= _LEVEL:
        return ""
    return f"{after.failed:,} of {after.begun:,} runs failed, {before.failed:,} of {before.begun:,} before"
