"""Progress on a terminal, in a log, and with a closed output; interruption of an experiment."""

import io
import os
import signal
import time

import pytest

from infercanary.ab.progress import show_progress
from infercanary.command.interruption import Interrupted, Interruption
from tests.scenarios import cases


@cases(
    [("start 2 \x1b[2J", "start 2 ?[2J\n"), ("± µ", "+/- u\n"), ("x" * 500, "x" * 399 + "...\n")],
)
def test_progress_is_a_line_of_ascii(text, line, capsys):
    show_progress(text)
    assert capsys.readouterr().err == line


def test_a_closed_standard_error_does_not_end_it(monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        stream = io.TextIOWrapper(full, encoding="ascii", write_through=True)
        monkeypatch.setattr("sys.stderr", stream)
        show_progress("start 1")
        stream.detach()


def test_ignored_signals_of_the_parent_stay_ignored():
    """With `nohup`, or as a shell's background job, the experiment must outlive the terminal."""
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


def test_a_signal_ends_a_pause_immediately_and_the_second_ends_all():
    interruption = Interruption()
    before = signal.getsignal(signal.SIGTERM)
    with interruption.handled():
        interruption.pause(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        begin = time.monotonic()
        with pytest.raises(Interrupted):
            interruption.pause(60)
        assert time.monotonic() - begin < 30
        with pytest.raises(Interrupted):
            interruption.check()
        assert interruption.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
