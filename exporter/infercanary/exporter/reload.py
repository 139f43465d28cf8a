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
from infercanary.exporter.config import ExporterConfig, check

log = structlog.get_logger(__name__)

RELOAD_OK = Metric(
    "infercanary_config_last_reload_successful",
    "gauge",
    "1 if the last load of the config worked, else 0.",
    reading="0 is an alert: the exporter still uses the old config, and a restart would fail. The exporter's log "
    "names the line.",
)
RELOAD_TIME = Metric(
    "infercanary_config_last_reload_success_timestamp_seconds",
    "gauge",
    "Unix time of the last successful load of the config.",
    reading="If it is older than your last change, the exporter did not read the change, or refused it.",
)
METRICS = (RELOAD_OK, RELOAD_TIME)

_WATCH_SECONDS = 1.0


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
        self._ok = True
        self._loaded_at = time.time()
        self._stamp = self._file_stamp()

    def reload(self) -> None:
        """Load the file again and put it in force.

        Raises:
            UsageError: The file is not good; the old config stays.
        """
        if self._path is None:
            raise UsageError("there is no config file to reload; start the exporter with --config PATH")
        self._stamp = self._file_stamp()
        try:
            new = check(self._path)
        except UsageError as error:
            self._ok = False
            log.error("config not reloaded, the old one stays", error=str(error))
            raise
        self._ok = True
        self._loaded_at = time.time()
        of_file = [key for key in self._fixed if key not in self._given]
        if unapplied := [key for key in of_file if getattr(new, key) != getattr(self.current, key)]:
            log.warning("restart the exporter to apply these settings", keys=", ".join(unapplied))
        self.current = msgspec.structs.replace(
            new, **{key: getattr(self.current, key) for key in self._fixed}
        )
        log.info("config reloaded")
        self._changed(self.current)

    async def watch(self) -> None:
        """Reload whenever the file becomes another one."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._file_stamp() != self._stamp:
                try:
                    self.reload()
                except UsageError:
                    continue  # logged, and shown by the metric

    def families(self) -> list[Family]:
        """Whether the last load worked, and when one last did.

        Returns:
            Families without labels of a container.
        """
        return [RELOAD_OK.family(float(self._ok)), RELOAD_TIME.family(self._loaded_at)]

    def _file_stamp(self) -> tuple[int, ...]:
        """Changes with the file, also where a symlink is swapped (Kubernetes) or the file is replaced (editors)."""
        if self._path is None:
            return ()
        try:
            stat = os.stat(self._path)
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
