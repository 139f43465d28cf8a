"""The exporter's log: text of others cannot act on a terminal, and cannot flood the log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import structlog

from infercanary.contract.text import masked, printable, shortened

LINES = 30
"""Lines of one cause in a minute: an upgrade may bring so many verdicts of a service."""
SECONDS = 60.0
_MOST_CHARACTERS = 4096  # of one value; of a traceback, its end


class Pace(logging.Filter):
    """Pass the first lines of each cause in each minute.

    A cause is a place in the code, with the container that the line is about.

    Args:
        clock: Monotonic clock, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._minute = 0.0
        self._lines: Counter[tuple[object, ...]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written; the handler that calls holds a lock."""
        if (minute := self._clock() // SECONDS) != self._minute:
            self._minute = minute
            self._lines.clear()
        event = record.msg if isinstance(record.msg, dict) else {}
        cause = record.pathname, record.lineno, event.get("service"), event.get("container")
        self._lines[cause] += 1
        if event and self._lines[cause] == LINES:
            event["note"] = "more lines like this are left out for up to a minute"
        return self._lines[cause] <= LINES


def configure(style: str) -> None:
    """Log to stderr, libraries included.

    Args:
        style: ``logfmt`` or ``json``.
    """
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if style == "logfmt":
        renderer = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.addFilter(Pace())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _made_printable,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _made_printable(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Mask passwords and control characters; a traceback keeps its lines."""
    for key, value in event.items():
        if key == "exception":
            lines = masked(str(value))[-_MOST_CHARACTERS:].split("\n")
            event[key] = "\n".join(printable(line) for line in lines)
        elif isinstance(value, str):
            event[key] = printable(shortened(masked(value), _MOST_CHARACTERS))
    return event
