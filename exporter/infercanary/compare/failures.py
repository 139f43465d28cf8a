"""Test for a rise in failed runs, which latencies of successful runs do not show. Pure functions."""

from __future__ import annotations

from infercanary.compare.recording import Attempts

# One-sided Fisher's exact test ("The Logic of Inductive Inference", 1935), which works with any number of runs, even
# without earlier failures. The test assumes independent failures, but a hang often makes the next runs fail as well. In
# a simulation with bursts of three failures and a failure rate of 5 % on both sides, the false positive rate is 2 to 6
# % at level 0.001 (5 to 11 % at 0.01; below 0.1 % at 0.001 without bursts). The other two limits exclude differences
# that are significant but small. These limits keep a single hang among many runs from being reported.
_LEVEL = 0.001
_LEAST = 3
_LEAST_SHARE = 0.05


def rise(before: Attempts, after: Attempts | None) -> str:
    """Return a clear rise of failed runs in words: ``40 of 50 runs failed, 0 of 200 before``.

    Args:
        before: Attempts of the baseline.
        after: Attempts of the candidate; None if not recorded.

    Returns:
        Empty without a clear rise, or if failed runs are not recorded.
    """
    if after is None or not before.begun or after.failed <= max(_LEAST - 1, _LEAST_SHARE * after.begun):
        return ""
    # The import takes a second and is rarely needed.
    from scipy.stats import fisher_exact

    table = [[side.failed, side.begun - side.failed] for side in (after, before)]
    if fisher_exact(table, alternative="greater")[1] >= _LEVEL:
        return ""
    return f"{after.failed:,} of {after.begun:,} runs failed, {before.failed:,} of {before.begun:,} before"
