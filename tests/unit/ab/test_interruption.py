"""Which signals an experiment handles."""

from __future__ import annotations

import os
import signal

from infercanary.ab.interruption import Interruption


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
