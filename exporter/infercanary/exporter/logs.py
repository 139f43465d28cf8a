"""The exporter's log: what others wrote cannot act on a terminal there, and cannot flood it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import structlog

from infercanary.contract.text import masked, printable, shortened

BURST = 30
"""Lines of one cause at once: so many verdicts of a service may come after an upgrade."""
SECONDS_OF_A_LINE = 10.0
"""Until the next line of a cause that has used up its burst."""
_MOST_CAUSES = 4096  # an exporter beside 1,000 containers has less than two each
_MOST_CHARACTERS = 4096  # of one value; of a traceback, its end

_Cause = tuple[object, ...]


class Pace(logging.Filter):
    """Lets through a burst of lines of each cause, and later one at a time, with how many were left out before it.

    The cause is the event with the container that it is about; of a library's line, the place in its code.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._causes: dict[
            _Cause, tuple[float, float, int]
        ] = {}  # lines it may have, when that was so, left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; the handler that calls has a lock.

        Args:
            record: Of structlog with a dictionary as its message, or of a library.
        """
        now = self._clock()
        cause = _cause(record)
        lines, since, left_out = self._causes.pop(cause, (float(BURST), now, 0))
        lines = min(BURST, lines + (now - since) / SECONDS_OF_A_LINE)
        if lines < 1:
            self._causes[cause] = lines, now, left_out + 1
            return False
        self._causes[cause] = lines - 1, now, 0
        if len(self._causes) > _MOST_CAUSES:
            del self._causes[next(iter(self._causes))]  # the one that was silent longest
        if left_out and isinstance(record.msg, dict):
            record.msg["lines_left_out"] = left_out
        elif left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines left out)", None
        return True


def configure(style: str, level: str) -> None:
    """Log in ``style`` to stderr, libraries included.

    Args:
        style: ``logfmt``, ``json`` or ``console``.
        level: The lowest that is logged, such as ``info``.
    """
    renderers: dict[str, structlog.typing.Processor] = {
        "logfmt": structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        "json": structlog.processors.JSONRenderer(),
        "console": structlog.dev.ConsoleRenderer(),
    }
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
                renderers[style],
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _cause(record: logging.LogRecord) -> _Cause:
    if isinstance(record.msg, dict):
        return tuple(str(record.msg.get(key)) for key in ("event", "service", "container"))
    return record.name, record.pathname, record.lineno


def _made_printable(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Texts of one line that no terminal acts on, without passwords; of a traceback, several such lines."""
    for key, value in event.items():
        if key == "exception":
            lines = masked(str(value))[-_MOST_CHARACTERS:].split("\n")
            event[key] = "\n".join(printable(line) for line in lines)
        elif isinstance(value, str):
            event[key] = printable(shortened(masked(value), _MOST_CHARACTERS))
    return event
