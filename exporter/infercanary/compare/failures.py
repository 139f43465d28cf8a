"""Whether more runs fail than before: those that ended well say nothing of it, however fast they were. Pure."""

from __future__ import annotations

from infercanary.compare.recording import Attempts

# Fisher's exact test ("The Logic of Inductive Inference", 1935), one-sided, takes any number of runs, and none that
# failed before. It assumes that runs fail one by one; but a hang fails those after it too, and an answer that cries at
# one such burst is soon not read. Simulated in bursts of three, with a twentieth of all runs failing on both sides, it
# errs in 2 to 6 of 100 comparisons at 0.001 (5 to 11 at 0.01; at 0.001 without bursts, in less than 1 of 1,000).
# The other two hold off what is sure but small: among many runs the test would find one hang.
_LEVEL = 0.001
_LEAST = 3
_LEAST_SHARE = 0.05


def rose(before: Attempts | None, after: Attempts | None) -> bool | None:
    """Whether clearly more runs fail ``after``; None where nothing tells of runs that fail."""
    if before is None or after is None or not (before.begun and after.begun):
        return None
    if after.failed < _LEAST or after.failed <= _LEAST_SHARE * after.begun:
        return False
    from scipy.stats import fisher_exact  # takes a second, and is rarely needed

    table = [[each.failed, each.begun - each.failed] for each in (after, before)]
    return bool(fisher_exact(table, alternative="greater")[1] < _LEVEL)


def shares(before: Attempts | None, after: Attempts | None) -> str:
    """Such as ``40 of 50 runs failed, 0 of 200 before``; empty where none did, or nothing tells of it."""
    if before is None or after is None or not after.failed:
        return ""
    return f"{after.failed:,} of {after.begun:,} runs failed, {before.failed:,} of {before.begun:,} before"
