"""An arm without an image: the probe runs in a Python interpreter of this host, as after a manual installation."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial

from infercanary.ab.probe_settings import settings_text
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import ArmSummary, StartFailed, last_line
from infercanary.command.children import end_group, free_port
from infercanary.command.interpreter import run_module

_LOG_BYTES = 8192


class Host:
    """Runs ``infercanary probe``. The probe's settings and log are files without a name, so no file is left behind.

    Args:
        side: Settings of this side; ``python`` is the interpreter.
        reaper: Ends remaining processes if this process is killed.
    """

    def __init__(self, side: Side, reaper: Reaper) -> None:
        self.summary = ArmSummary(name=f"host ({side.python})", host=platform.node(), settings=side.differing)
        self._side, self._reaper = side, reaper
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Sequence[str]:
        side, address = self._side, f"127.0.0.1:{free_port()}"
        # CUDA orders GPUs by speed; Docker and NVML order GPUs by PCI bus (CUDA programming guide, CUDA_DEVICE_ORDER).
        devices = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(side.gpus)}
        try:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it is read until the end
            with tempfile.TemporaryFile() as settings:
                settings.write(settings_text(side.probe, address).encode())
                settings.seek(0)
                self._child = subprocess.Popen(  # noqa: S603 - the user named the interpreter
                    run_module("infercanary", "probe", "--config", "/dev/stdin", python=side.python),
                    env={**os.environ, **(devices if side.gpus else {}), **side.variables},
                    stdin=settings,
                    stdout=subprocess.DEVNULL,
                    stderr=self._log,
                    # Ctrl-C does not reach the probe in its own group. The experiment then ends all processes of
                    # this group.
                    start_new_session=True,
                    preexec_fn=partial(os.sched_setaffinity, 0, side.cpuset) if side.cpuset else None,  # noqa: PLW1509 - no other thread runs
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise StartFailed(f"{side.python} cannot be started ({error})") from None
        self._reaper.send(f"watch {self._child.pid}")
        return [f"http://{address}"]

    def ended(self) -> str:
        code = self._child.poll() if self._child else None
        return "" if code is None else f"the probe ended with exit code {code}"

    def last_words(self) -> str:
        file = self._log.fileno()  # The child and this process share the file offset, which pread ignores.
        begin = max(0, os.fstat(file).st_size - _LOG_BYTES)
        return last_line(os.pread(file, _LOG_BYTES, begin))

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            end_group(child)
            self._reaper.send(f"forget {child.pid}")
            self._log.close()
