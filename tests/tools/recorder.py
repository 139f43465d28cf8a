"""Records targets into journals like a probe, but without a schedule: steady runs, and profiled repeats.

Trials of comparisons use it, because separate probe processes would take most of the time.
"""

import statistics
import time
import uuid
from collections.abc import Callable

from infercanary.contract.journal import JournalEntry, encode, environment_id
from infercanary.contract.report import Run
from infercanary.probe.targets import Target

CANARY = "model"
_STARTS = 3
_RUNS = 16
_REPEATS = 8
_WARM_UPS = 3


Side = Callable[[], Target]
"""Makes a target that can be profiled."""
_WEIGHTS_BYTES = 16 << 20


def record(journals, sides):
    """Write two starts of each side to the side's journal, in turns: other load then affects both sides equally.

    Args:
        journals: One file for each side; lines are appended.
        sides: One side for each journal.
    """
    # Free a block of this size first, like a process that has read the file of a model. Otherwise the C
    # library may return memory to the kernel after each repeat, depending on the profiler (mallopt(3),
    # M_MMAP_THRESHOLD).
    bytearray(_WEIGHTS_BYTES)
    for _ in range(_STARTS):
        for path, side in zip(journals, sides, strict=True):
            with path.open("ab") as file:
                file.writelines(map(encode, _start(side())))


def _start(target):
    target.open()
    components = {name: str(value) for name, value in target.environment().items()}
    environment, boot = environment_id(components), uuid.uuid4().hex
    entries = [JournalEntry(boot, environment, components=components)]
    for _ in range(_WARM_UPS):
        target.clock.measure(target.run)
    profile = target.profile(_REPEATS)
    for sequence in range(_RUNS):
        at = time.time()
        timings = [target.clock.measure(target.run)[0] for _ in range(_REPEATS)]
        latencies = tuple(timing.wall for timing in timings)
        phases = {name: statistics.median(t.phases[name] for t in timings) for name in timings[0].phases}
        attached = profile if sequence == 1 else None
        run = Run(sequence, CANARY, at, at, "ok", latencies, phases, profile=attached)
        entries.append(JournalEntry(boot, environment, run=run))
    target.close()
    return entries
