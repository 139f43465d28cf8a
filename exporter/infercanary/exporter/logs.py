"""The exporter's log: untrusted text cannot control a terminal or flood the log."""

from __future__ import annotations

import logging
import time
from collections import Counter

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict

from infercanary.contract.text import masked, printable

LINES = 30
"""Maximum number of lines a minute for each cause; enough for the verdicts on one service after an upgrade."""
SECONDS = 60.0
_MOST_CHARACTERS = 4096  # size of one value; a longer value keeps its end, where a traceback has the error


class Pace(logging.Filter):
    """Passes only the first lines of each cause in each minute.

    A cause is a place in the code together with the container that the line is about.
    """

    def __init__(self) -> None:
        super().__init__()
        self._minute = 0.0
        self._lines: Counter[tuple[object, ...]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is to be written. The calling handler holds a lock."""
        if (minute := time.monotonic() // SECONDS) != self._minute:
            self._minute, self._lines = minute, Counter()
        event = record.msg if isinstance(record.msg, dict) else {}
        cause = record.pathname, record.lineno, event.get("service"), event.get("container")
        self._lines[cause] += 1
        if self._lines[cause] == LINES:
            event["note"] = "more lines like this are left out for up to a minute"
        return self._lines[cause] <= LINES


def configure() -> None:
    """Log to stderr as logfmt, including the lines of libraries."""
    structlog.configure(
        processors=[ProcessorFormatter.wrap_for_formatter], logger_factory=structlog.stdlib.LoggerFactory()
    )
    handler = logging.StreamHandler()
    handler.addFilter(Pace())
    handler.setFormatter(
        ProcessorFormatter(
            processors=[
                ProcessorFormatter.remove_processors_meta,
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.format_exc_info,
                _made_printable,
                structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _made_printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Mask passwords and control characters. logfmt itself escapes line ends."""
    for key, value in event.items():
        if isinstance(value, str):
            lines = masked(value)[-_MOST_CHARACTERS:].split("\n")
            event[key] = "\n".join(map(printable, lines))
    return event
