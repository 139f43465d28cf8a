"""Progress on a terminal, in a log, and where nothing can be written; and how an experiment is interrupted."""

from __future__ import annotations

import io
import os
import signal
import time

import pytest

from infercanary.ab.interruption import ExperimentInterrupted, Interruption
from infercanary.ab.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "41")
    stream = Terminal()
    progress = Progress(stream)
    progress.show("start 1", "start 1: loading")
    progress.show("start 1", "start 1: " + "x" * 60)
    progress.note("B failed")
    progress.clear()
    assert stream.getvalue() == (
        "\rstart 1: loading\x1b[K\rstart 1: " + "x" * 30 + "…\x1b[K\r\x1b[Kinfercanary: B failed\n"
    )


def test_in_a_log_each_start_is_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for what in ("starting", "loading", "3 of 12 runs"):
        progress.show("start 1", f"start 1: {what}")
    progress.show("start 2", "start 2: starting \x1b[2J")
    progress.clear()
    assert stream.getvalue() == "start 1: starting\nstart 2: starting ?[2J\n"


def test_a_closed_standard_error_does_not_end_it() -> None:
    stream = io.TextIOWrapper(open("/dev/full", "wb", buffering=0), encoding="ascii", write_through=True)  # noqa: SIM115
    progress = Progress(stream)
    progress.show("a", "± µ")
    progress.note("b")
    stream.detach().close()


def test_what_the_parent_ignores_stays_ignored() -> None:
    """`nohup`, and a shell's background job: the experiment is to outlive the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with interruption.handled():
            os.kill(os.getpid(), signal.SIGHUP)
            interruption.check()
            assert signal.getsignal(signal.SIGTERM) == interruption._take
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_ends_a_pause_immediately_and_the_second_ends_all() -> None:
    interruption = Interruption()
    before = signal.getsignal(signal.SIGTERM)
    with interruption.handled():
        interruption.pause(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        begin = time.monotonic()
        with pytest.raises(ExperimentInterrupted):
            interruption.pause(60)
        assert time.monotonic() - begin < 30
        with pytest.raises(ExperimentInterrupted):
            interruption.check()
        assert interruption.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
