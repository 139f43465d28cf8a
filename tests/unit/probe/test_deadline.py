"""Calls with a deadline, in real threads."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, Worker, one_line

LONG = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_result_and_thread() -> None:
    worker = Worker("w")
    threads = [worker.call(threading.current_thread, LONG) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon
    assert threads[0].name == "w"
    assert worker.stop(LONG)
    assert not threads[0].is_alive()


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), DeadlineExceeded("own")]
)
def test_whatever_is_raised_comes_back_and_the_thread_lives(error: BaseException) -> None:
    worker = Worker("w")

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        worker.call(fail, LONG)
    assert caught.value is error
    assert worker.call(lambda: 7, LONG) == 7
    assert worker.stop(LONG)


def test_a_hang_is_given_up_and_the_worker_recovers_by_itself_in_the_same_thread() -> None:
    worker = Worker("w")
    thread = worker.call(threading.current_thread, LONG)
    go_on, came_back = threading.Event(), threading.Event()

    def hang() -> str:
        go_on.wait(LONG)
        came_back.set()
        return "late"

    with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
        worker.call(hang, 0.05)
    for _ in range(3):
        with pytest.raises(StillBusy):
            worker.call(lambda: "never", LONG)
    go_on.set()
    assert came_back.wait(LONG)

    def next_call() -> bool:
        try:
            # The late answer is not taken for this call's.
            assert worker.call(threading.current_thread, LONG) is thread
        except StillBusy:
            return False
        return True

    until(next_call)
    assert worker.stop(LONG)


def test_interrupt_ends_the_wait_under_way_and_all_later_ones() -> None:
    worker = Worker("w")
    go_on, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        go_on.wait(LONG)

    def interrupt() -> None:
        entered.wait(LONG)
        worker.interrupt()

    helper = threading.Thread(target=interrupt)
    helper.start()
    begin = time.monotonic()
    with pytest.raises(Interrupted):
        worker.call(hang, LONG)
    assert time.monotonic() - begin < LONG / 2
    helper.join()
    go_on.set()
    with pytest.raises((Interrupted, StillBusy)):
        worker.call(lambda: 1, LONG)
    assert worker.stop(LONG)


def test_stop_runs_the_last_call_after_the_one_under_way() -> None:
    worker = Worker("w")
    go_on = threading.Event()
    order: list[str] = []

    def slow() -> None:
        go_on.wait(LONG)
        order.append("slow")

    worker.begin(slow)
    assert not worker.stop(0.01, lambda: order.append("last"))
    go_on.set()
    until(lambda: order == ["slow", "last"])


def test_after_a_rest_the_next_call_has_a_new_thread() -> None:
    worker = Worker("w")
    first = worker.call(threading.current_thread, LONG)
    worker.rest()
    first.join(LONG)
    assert not first.is_alive()
    assert worker.call(threading.current_thread, LONG) is not first
    worker.rest()
    order: list[str] = []
    assert worker.stop(LONG, lambda: order.append("last"))
    assert order == ["last"]


def test_a_failed_call_keeps_no_memory() -> None:
    """A model's error must not hold its tensors until the garbage collector comes by."""

    class Tensor:
        pass

    worker = Worker("w")
    alive: list[weakref.ref[Any]] = []

    def fail() -> None:
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
    assert worker.stop(LONG)


def test_cpu_time_is_that_of_the_calls() -> None:
    worker = Worker("w")
    worker.call(lambda: sum(range(300_000)), LONG)
    once = worker.cpu_seconds
    worker.call(lambda: sum(range(3_000_000)), LONG)
    assert 0 < once < worker.cpu_seconds
    assert worker.stop(LONG)


def test_one_line() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(ValueError()) == "ValueError"
    assert one_line(ValueError("a\x00b\udc80c")) == "ValueError: a b c"
    assert one_line(Broken()) == "Broken: (its text cannot be read: RuntimeError)"
    assert len(one_line(ValueError("x" * 10_000))) < 250


def test_a_hanging_call_keeps_its_thread_through_a_rest_and_can_be_waited_for() -> None:
    worker = Worker("w")
    assert worker.stop(0), "there is no thread to end"
    thread = worker.call(threading.current_thread, LONG)
    go_on = threading.Event()
    worker.begin(lambda: go_on.wait(LONG))
    for seconds in (0, 0.01):
        with pytest.raises(DeadlineExceeded):
            worker.result(seconds)
    worker.rest()
    go_on.set()
    assert worker.result(LONG) is True
    assert worker.call(threading.current_thread, LONG) is thread
    assert worker.stop(LONG)
