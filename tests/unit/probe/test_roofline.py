"""The limit of a canary, from a profile, timed repeats and ceilings."""

from typing import Any

import pytest

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.doctor.limits import limit_document, limit_sentence
from infercanary.probe.roofline import Ceilings, Timed, find_limit
from infercanary.render.text import render_text

CEILINGS = Ceilings("float", 100e9, 20e9, 1e-6)

PHASES = ("h2d", "compute", "d2h", "launch", "queue")


def limit(off_cpu=(0, 0, 0), rows=(), ceilings=CEILINGS, rest=0.0, throttled=0.0, phases=(), unknown=False):
    """Return the limit of a canary that takes 10 ms.

    Args:
        off_cpu: Milliseconds queued, blocked and reading.
        rows: Name, milliseconds, MFLOP, MB, calls (0 if the work is unknown), and optionally device and kernel.
        ceilings: See :func:`find_limit`.
        rest: Milliseconds of operators without a row.
        throttled: Milliseconds.
        phases: Milliseconds of h2d, compute, d2h, launch and queue.
        unknown: True if the kernel does not count CPU wait.
    """
    made = []
    for name, ms, mega_flop, mega_bytes, calls, *device in rows:
        device, kernel = device or ("cpu", name)
        work = (1e6 * mega_flop, 1e6 * mega_bytes, calls) if calls else ()
        made.append(ProfileRow(name, kernel, device, "", calls, (ms / 1e3,), 0, *work))
    profile = Profile(1.0, "torch", "ok", (1.0,), (0.0,), (rest / 1e3,), tuple(made))
    reasons = ("asleep", "reading") if unknown else ("queued", "blocked", "reading")
    timed = Timed(0.01, in_seconds(PHASES, phases), in_seconds(reasons, off_cpu), throttled / 1e3)
    return find_limit("c", timed, profile, ceilings)


def in_seconds(names, milliseconds):
    return {name: ms / 1e3 for name, ms in zip(names, milliseconds, strict=False)}


# 100 GFLOP/s are 100 MFLOP a millisecond; 20 GB/s are 20 MB a millisecond.
GPU = ("cuda:0", "gemm")
LIMITS: dict[str, dict[str, Any]] = {
    "memory-bound: 72 % of this container's bandwidth, 10 % of its arithmetic": {"rows": [("mm", 9, 100, 144, 1)]},
    "compute-bound: 10 % of this container's bandwidth, 90 % of its arithmetic": {"rows": [("mm", 10, 900, 20, 1)]},
    # Both operators are at their ceilings, for nearly the same time.
    "compute-bound and nearly as much memory-bound: 45 % of this container's bandwidth, 50 % of its arithmetic": {
        "rows": [("mm", 5, 500, 0, 1), ("add", 4.5, 0, 90, 1)]
    },
    "scheduling-bound: 80 % of the time is outside operators": {"rows": [("mm", 2, 190, 1, 1)]},
    "scheduling-bound: 100 % of the time is operator calls": {"rows": [("add", 10, 0, 0.1, 5000)]},
    # The profile is older than the neighbour that takes the CPU now.
    "scheduling-bound: 70 % of the time is CPU wait": {"off_cpu": (7, 0, 0), "rows": [("mm", 3, 290, 1, 1)]},
    # The profile includes pauses of the quota: without them, the product reaches 83 % of the ceiling.
    "scheduling-bound: 71 % of the time is CPU quota": {
        "off_cpu": (7.1, 0, 0), "rows": [("mm", 10, 240, 1, 1)], "throttled": 6,
    },
    "scheduling-bound: 80 % of the time is lock or sleep": {"off_cpu": (0, 8, 0), "rows": [("mm", 2, 190, 1, 1)]},
    "io-bound: 90 % of the time is disk reads": {"off_cpu": (0, 0, 9), "rows": [("mm", 1, 90, 1, 1)]},
    "unknown: 79 % of the time is covered, 80 % are needed; not covered: sort": {
        "rows": [("mm", 7.9, 780, 1, 1), ("sort", 2.1, 0, 0, 0)]
    },
    # 80 % are enough.
    "compute-bound: 1 % of this container's bandwidth, 79 % of its arithmetic": {
        "rows": [("mm", 8, 790, 2, 1), ("sort", 2, 0, 0, 0)]
    },
    # The ceiling does not cover operators without a row.
    "unknown: 70 % of the time is covered, 80 % are needed; not covered: small operators, or waits": {
        "rows": [("mm", 7, 690, 1, 1)], "rest": 3,
    },
    # Neither arithmetic nor bandwidth explains this time.
    "unknown: 0 % of the time is covered, 80 % are needed; not covered: exp": {"rows": [("exp", 10, 20, 40, 1)]},
    "unknown: 60 % of the time is covered, 80 % are needed; not covered: small operators, or waits": {
        "off_cpu": (4, 0), "unknown": True, "rows": [("mm", 6, 590, 1, 1)],
    },
    # Without a profile, the waits alone may decide.
    "scheduling-bound: 90 % of the time is lock or sleep": {"off_cpu": (0, 9, 0), "ceilings": "no profiler"},
    "unknown: 70 % of the time is covered, 80 % are needed; no profiler": {
        "off_cpu": (0, 7, 0), "ceilings": "no profiler",
    },
    # On a GPU, the host's operators do not count, and copies count by their phase.
    "compute-bound: 1 % of this container's bandwidth, 70 % of its arithmetic": {
        "off_cpu": (0, 9, 0), "phases": (1, 8.5, 0.5, 2, 0),
        "rows": [
            ("mm", 8, 700, 1, 1, *GPU), ("copy_", 1, 0, 20, 1, "cuda:0", "Memcpy HtoD"), ("nonzero", 5, 0, 0, 0)
        ],
    },
    "scheduling-bound: 88 % of the time is gaps between kernels": {
        "phases": (0.1, 9.8, 0.1, 5, 0), "rows": [("mm", 1, 90, 1, 300, *GPU)],
    },
    "io-bound: 80 % of the time is copies to the device": {
        "phases": (8, 1, 1, 0.1, 0), "rows": [("mm", 1, 90, 1, 1, *GPU)],
    },
    # The queue takes longer than each copy, and is no I/O.
    "io-bound: 35 % of the time is copies to the device": {"phases": (3.5, 0, 2.5, 0.1, 4)},
}  # fmt: skip


@pytest.mark.parametrize("sentence", LIMITS)
def test_the_limit_is_where_most_of_the_time_goes(sentence):
    found = limit(**LIMITS[sentence])
    assert limit_sentence(found) == sentence
    assert sum(found.shares.values()) == pytest.approx(1)
    assert min(found.shares.values()) > -1e-9


def test_the_table_has_each_operator_with_its_limit():
    found = limit((1, 0, 0), [("mm", 6, 500, 1, 1), ("add", 3, 0, 57, 1)])
    text = render_text(limit_document(found), 100)
    assert (
        text
        == """\
canary c: compute-bound: 29 % of this container's bandwidth, 50 % of its arithmetic

  latency      10 ms
  shares       compute 60 %, memory 30 %, scheduling 10 %
  causes       CPU wait 10 %
  ceilings     100 GFLOP/s (float), 20 GB/s

  operator  share  limit    arithmetic  bandwidth  shapes
  mm        60 %   compute  83.3 %      0.833 %
  add       30 %   memory   0 %         95 %
"""
    )
