"""The sampler of stalls, with a thread that really holds the interpreter lock."""

import ctypes
import time

import pytest
from watching import until

from infercanary.probe.samplers.stalls import StallSampler

INTERPRETER = ctypes.PyDLL(None)  # its functions hold the interpreter lock, unlike those of a CDLL


def stalled(sampler):
    ((point,),) = (family.points for family in sampler.sample())
    assert isinstance(point.value, float)
    return point.value


@pytest.mark.parametrize("seconds", [0.8, 2.0])
def test_a_gap_counts_but_for_a_tick(seconds):
    """The gap starts early in a tick, so almost a whole tick does not count: the lowest possible count."""
    sampler = StallSampler()
    try:
        assert stalled(sampler) == 0
        time.sleep(0.1)  # now the sampler's thread sleeps
        begin = time.monotonic()
        INTERPRETER.usleep(int(seconds * 1e6))
        held = time.monotonic() - begin
        counted = until(lambda: stalled(sampler), "the gap is not seen")
        assert held - 0.25 <= counted < held + 0.5
    finally:
        sampler.close()
