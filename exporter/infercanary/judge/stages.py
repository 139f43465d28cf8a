"""The verdict on one canary of one service: since which upgrade, on which runs, after how many looks.

Pure, and without memory: the same records give the same verdict, so that nothing of it can be lost. The looks are
replayed each time, with all that is known by now: a start that came later adds its first runs to each of them, and what
restarts have taught since counts. So evidence that comes late may take back a call that was made early.
"""

from __future__ import annotations

from collections.abc import Sequence

from infercanary.judge.align import align
from infercanary.judge.causes import attribute
from infercanary.judge.decide import decide
from infercanary.judge.estimate import estimate
from infercanary.judge.model import Judgement, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.sentence import word
from infercanary.judge.upgrade import select


def judge(
    starts: Sequence[Start], siblings: Sequence[Start], canary: str, policy: Policy = LIVE
) -> Judgement:
    """Did the last upgrade of a service change the latency of ``canary``, by how much, and why.

    Args:
        starts: Of the service's containers, in order of time, with the runs of this canary.
        siblings: Starts of other services on the host, one canary each, in order of time.
        canary: Its name.
        policy: The numbers that decide.

    Returns:
        `no_baseline` without an upgrade, or where the image before has too few runs; `settling` before the first look.
    """
    selection = select(starts, policy.pool)
    runs = align(selection, siblings, policy)
    estimated = estimate(runs, policy)
    decided = decide(estimated, policy)
    return word(decided, attribute(decided, canary, policy), policy)
