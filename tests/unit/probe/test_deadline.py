"""Calls with a deadline, in real threads."""

import gc
import threading
import time
import weakref

import pytest
from watching import until

from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, Worker, close_all, one_line

LONG = 60.0


@pytest.fixture
def worker():
    worker = Worker("w")
    yield worker
    assert worker.stop(LONG)


@pytest.mark.parametrize("stays", [False, True])
def test_a_call_has_a_thread_of_its_own_unless_the_thread_stays(stays):
    worker = Worker("w", stays=stays)
    assert worker.stop(0), "there is no thread to end yet"
    first = worker.call(threading.current_thread, LONG)
    assert first.daemon
    assert first.name == "w"
    if not stays:
        first.join(LONG)
    assert first.is_alive() == stays
    assert (worker.call(threading.current_thread, LONG) is first) == stays
    order = []
    assert worker.stop(LONG, lambda: order.append("last"))
    assert order == ["last"]


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), DeadlineExceeded("own")]
)
def test_whatever_is_raised_comes_back_and_the_thread_lives(worker, error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        worker.call(fail, LONG)
    assert caught.value is error
    assert worker.call(lambda: 7, LONG) == 7


def test_a_hang_is_given_up_and_the_worker_recovers_by_itself(worker):
    go_on = threading.Event()
    with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
        worker.call(lambda: go_on.wait(LONG), 0.05)
    for _ in range(3):
        with pytest.raises(StillBusy):
            worker.call(lambda: "never", LONG)
    go_on.set()
    until(lambda: not worker.is_busy)
    assert worker.call(lambda: 7, LONG) == 7, "the late result must not be returned to this call"


def test_a_call_can_be_waited_for_again_and_stop_runs_the_last_one_after_it(worker):
    go_on, order = threading.Event(), list[str]()
    worker.begin(lambda: [go_on.wait(LONG), order.append("slow")])  # type: ignore[func-returns-value]
    for seconds in (0, 0.01):
        with pytest.raises(DeadlineExceeded):
            worker.result(seconds)
    assert not worker.stop(0.01, lambda: order.append("last"))
    go_on.set()
    worker.result(LONG)
    until(lambda: order == ["slow", "last"])


def test_interrupt_ends_the_wait_under_way_and_all_later_ones(worker):
    go_on, entered = threading.Event(), threading.Event()
    helper = threading.Thread(target=lambda: [entered.wait(LONG), worker.interrupt()])
    helper.start()
    begin = time.monotonic()
    with pytest.raises(Interrupted):
        worker.call(lambda: entered.set() or go_on.wait(LONG), LONG)  # type: ignore[func-returns-value]
    assert time.monotonic() - begin < LONG / 2
    helper.join()
    go_on.set()
    with pytest.raises((Interrupted, StillBusy)):
        worker.call(lambda: 1, LONG)


def test_a_failed_call_keeps_no_memory(worker):
    """A model's error must not keep its tensors in memory until the next garbage collection."""

    class Tensor:
        pass

    alive = []

    def fail():
        tensor = Tensor()
        alive.append(weakref.ref(tensor))
        raise ValueError("out of memory")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="out of memory") as caught:
            worker.call(fail, LONG)
        del caught
        worker.call(lambda: None, LONG)
        assert alive[0]() is None
    finally:
        gc.enable()


def test_cpu_time_is_that_of_the_calls(worker):
    worker.call(lambda: sum(range(300_000)), LONG)
    once = worker.cpu_seconds
    worker.call(lambda: sum(range(3_000_000)), LONG)
    assert 0 < once < worker.cpu_seconds


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no text")


LINES = [
    (ValueError("first\nsecond"), "ValueError: first"),
    (ValueError(), "ValueError"),
    (ValueError("a\x00b\udc80c"), "ValueError: a b c"),
    (Broken(), "Broken: (the error's text cannot be read: RuntimeError)"),
    (ValueError("x" * 10_000), "ValueError: " + "x" * 188),
]


@pytest.mark.parametrize(("error", "line"), LINES)
def test_one_line(error, line):
    assert one_line(error).startswith(line)
    assert len(one_line(error)) < 250


def test_parts_share_the_time_to_close_and_each_gets_some():
    given = []

    def close(seconds, ended=True):
        given.append(seconds)
        time.sleep(0.15)
        return ended

    assert close_all([close, close], 0.2)
    assert not close_all([close, lambda seconds: close(seconds, False)], 9)
    assert given == pytest.approx([0.2, 0.1, 9.0, 8.85], abs=0.04)
