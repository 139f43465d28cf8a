"""Judge: decides whether latency changed, by how much, and why. Pure functions without I/O or clock.

To compare two samples of latencies, or to find where one series changed its level::

    from infercanary.judge import compare, scan

    compare([18.1, 18.3, …], [19.4, 19.2, …]).verdict  # 'regressed'
    [change.index for change in scan(latencies)]

To judge the last upgrade of a service, given its starts with their runs::

    from infercanary.judge import Judge

    Judge().verdict(starts, siblings, "canary")  # a Result
"""

from typing import TYPE_CHECKING, Any

from infercanary.judge.changepoints import ChangePoint, scan
from infercanary.judge.samples import compare
from infercanary.judge.shift import Comparison

if TYPE_CHECKING:
    from infercanary.judge.result import Result
    from infercanary.judge.verdict import Judge

__all__ = ["ChangePoint", "Comparison", "Judge", "Result", "compare", "scan"]


def __getattr__(name: str) -> Any:
    """Import ``Judge`` and ``Result`` at first use, because a comparison of two samples needs neither."""
    if name not in ("Judge", "Result"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from infercanary.judge.result import Result
    from infercanary.judge.verdict import Judge

    return Judge if name == "Judge" else Result
