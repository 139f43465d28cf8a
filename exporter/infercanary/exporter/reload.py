"""The config in force, and its replacement: when the file changes, on request, and on SIGHUP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from infercanary.command.settings import UsageError
from infercanary.contract.report import Metric
from infercanary.exporter.config import ExporterConfig, check, remarks
from infercanary.exporter.watch import in_thread

log = structlog.get_logger(__name__)

RELOAD_OK = Metric(
    "infercanary_config_last_reload_successful",
    "gauge",
    "1 if the last load of the config worked, else 0.",
    reading="0 is an alert: the old config stays, and a restart would fail. The exporter's log names the line.",
)
METRICS = (RELOAD_OK,)

_FIXED = ("listen", "store", "host", "docker", "kubernetes", "judge")  # settings that need a restart
_WATCH_SECONDS = _REST_SECONDS = 1.0


class LiveConfig:
    """Hold the config in force as ``current``; a bad file leaves it as it was.

    Args:
        config: First config.
        path: Its file; None if there is none.
        apply: Called with each new config.
        given: Options of the command line by key; they override the file.
    """

    def __init__(
        self,
        config: ExporterConfig,
        path: Path | None,
        apply: Callable[[ExporterConfig], None],
        given: Mapping[str, object],
    ) -> None:
        self.current = config
        self.ok = True
        """False if the last load failed."""
        self._path, self._apply, self._given = path, apply, given
        self._stamp = self._file_stamp()
        self._loading = asyncio.Lock()

    async def reload(self) -> None:
        """Put the file in force; one that is in force already is not read again, however often somebody asks.

        Raises:
            UsageError: The file has a mistake.
        """
        if self._path is None:
            raise UsageError("there is no config file to reload; start the exporter with --config PATH")
        async with self._loading:
            stamp = self._file_stamp()
            if self.ok and stamp == self._stamp:
                return
            try:
                if self._path.is_fifo():  # it may never end
                    raise UsageError(f"{self._path}: is a pipe; put a file in its place")
                new = await in_thread(partial(check, self._path, self._given))
                self._stamp = stamp
                self._put_in_force(new)
                self.ok = True
            except Exception as caught:  # a fault of ours must not end the watch
                self._stamp, self.ok = stamp, False
                error = caught if isinstance(caught, UsageError) else UsageError(f"{self._path}: {caught!r}")
                log.error("config not reloaded, the old one stays", error=str(error))
                await asyncio.sleep(_REST_SECONDS)  # a bad file is read again for whoever asks next
                raise error from None

    def request(self) -> None:
        """Have the file read within a second, even if it is the same."""
        self._stamp = ()

    async def watch(self) -> None:
        """Reload when the file changes."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._file_stamp() != self._stamp:
                with suppress(UsageError):  # logged, and shown by the metric
                    await self.reload()

    def _put_in_force(self, new: ExporterConfig) -> None:
        kept = {key: getattr(self.current, key) for key in _FIXED}
        if changed := [key for key, value in kept.items() if getattr(new, key) != value]:
            log.warning("restart the exporter to apply these settings", keys=", ".join(changed))
        new = msgspec.structs.replace(new, **kept)
        for remark in remarks(new):
            log.warning(remark)
        self.current = new
        self._apply(new)
        log.info("config reloaded")

    def _file_stamp(self) -> tuple[int, ...]:
        """Return a value that changes with the file, also where a symlink is swapped (Kubernetes)."""
        try:
            stat = os.stat(self._path or "")
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
