"""The config in force, and its replacement while running: on a change of the file, a request, or SIGHUP."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import structlog

from infercanary.command.settings import UsageError
from infercanary.contract.report import Family, Metric
from infercanary.exporter.config import ExporterConfig, check, remarks

log = structlog.get_logger(__name__)

RELOAD_OK = Metric(
    "infercanary_config_last_reload_successful",
    "gauge",
    "1 if the last load of the config worked, else 0.",
    reading="0 is an alert: the old config stays, and a restart would fail. The exporter's log names the line.",
)
METRICS = (RELOAD_OK,)

_WATCH_SECONDS = 1.0
_LEAST_SECONDS, _MOST_SECONDS, _TIMES_ITS_WORK = 1.0, 10.0, 5.0  # between two loads, whoever asks how often


class LiveConfig:
    """Holds ``current``; a bad file leaves it as it was.

    Args:
        config: What is in force at first.
        path: The file that it was read from; None if it cannot be reloaded.
        changed: Called with each new config.
        fixed: Keys that need a restart, and keep the values of ``config``.
        given: Keys that the command line sets, whatever the file says.
    """

    def __init__(
        self,
        config: ExporterConfig,
        path: Path | None,
        changed: Callable[[ExporterConfig], None],
        fixed: Collection[str],
        given: Collection[str] = (),
    ) -> None:
        self.current = config
        self._path = path
        self._changed = changed
        self._fixed = fixed
        self._given = given
        self.ok = True
        """Whether the last load worked."""
        self._stamp = self._file_stamp()
        self._complaint = ""
        self._next: asyncio.Task[UsageError | None] | None = None
        self._loading = asyncio.Lock()
        self._rests_until = 0.0

    async def reload(self) -> None:
        """Load the file as it is now and put it in force.

        Raises:
            UsageError: The file is not good; the old config stays.
        """
        if (error := await asyncio.shield(self.ask())) is not None:  # who asked first may leave
            raise error

    def ask(self) -> asyncio.Task[UsageError | None]:
        """Have the file loaded soon: those who ask until that begins share it.

        Returns:
            What is wrong with the file, once that is known.
        """
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._load())
        return self._next

    async def _load(self) -> UsageError | None:
        """Load it in a thread: a file of many probes takes a third of a second."""
        async with self._loading:
            await asyncio.sleep(self._rests_until - time.monotonic())
            self._next = None  # whoever asks from now on may have changed the file since
            begin = time.monotonic()
            self._stamp = self._file_stamp()
            try:
                if self._path is None:
                    raise UsageError(
                        "there is no config file to reload; start the exporter with --config PATH"
                    )
                if self._path.exists() and not self._path.is_file():  # a pipe may never end
                    raise UsageError(f"{self._path}: is no file any more; put one in its place")
                given = {key: getattr(self.current, key) for key in self._given}
                self._put_in_force(await asyncio.to_thread(check, self._path, given))
            except Exception as caught:  # a fault of ours must not end the watch
                error = caught if isinstance(caught, UsageError) else UsageError(f"{self._path}: {caught!r}")
                self.ok = self._path is None and self.ok
                if str(error) != self._complaint:
                    log.error("config not reloaded, the old one stays", error=str(error))
                self._complaint = str(error)
                return error
            finally:
                now = time.monotonic()
                self._rests_until = now + min(
                    _MOST_SECONDS, max(_LEAST_SECONDS, _TIMES_ITS_WORK * (now - begin))
                )
            return None

    def _put_in_force(self, new: ExporterConfig) -> None:
        was_ok, self.ok, self._complaint = self.ok, True, ""
        of_file = [key for key in self._fixed if key not in self._given]
        if unapplied := [key for key in of_file if getattr(new, key) != getattr(self.current, key)]:
            log.warning("restart the exporter to apply these settings", keys=", ".join(unapplied))
        new = msgspec.structs.replace(new, **{key: getattr(self.current, key) for key in self._fixed})
        # Each file has a type of its own, by which discoveries there are.
        is_new = msgspec.structs.asdict(new) != msgspec.structs.asdict(self.current)
        if is_new or not was_ok:
            log.info("config reloaded")
        if is_new:
            known = remarks(self.current)
            for remark in remarks(new):
                if remark not in known:
                    log.warning(remark)
            self.current = new
            self._changed(new)

    async def watch(self) -> None:
        """Reload whenever the file becomes another one."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._file_stamp() != self._stamp:
                await asyncio.shield(self.ask())  # what is wrong is logged, and shown by the metric

    def families(self) -> list[Family]:
        """Whether the last load worked.

        Returns:
            Families without labels of a container.
        """
        return [RELOAD_OK.family(float(self.ok))]

    def _file_stamp(self) -> tuple[int, ...]:
        """Changes with the file, also where a symlink is swapped (Kubernetes) or the file is replaced (editors)."""
        if self._path is None:
            return ()
        try:
            stat = os.stat(self._path)
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
