"""The log limits floods, and removes terminal control characters."""

import logging
import sys
import time

from infercanary.exporter.logs import LINES, SECONDS, Pace
from tests.programs import ended

FLOOD = """
import logging
import structlog
from infercanary.exporter import logs

logs.configure()
log = structlog.get_logger("exporter")
for number in range(3000):
    log.info("runs are left out", service="s", container="hostile", boot=number)
    try:
        raise ValueError("of\\x1b[2J\\u202e a request")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error handling request %d", number)
log.info("runs are left out", service="s", container="honest")
log.info("verdict", service="s", verdict="regressed: torch 2.12 \\x1b[2J\\n\\u202e -> 2.13")
log.info("verdict", service="s", verdict="x" * 100_000)
"""


def record(container):
    event = {"event": "runs are left out", "service": "s", "container": container}
    return logging.LogRecord("exporter", logging.INFO, "thread.py", 1, event, (), None)


def test_a_flood_is_a_few_lines_and_no_terminal_acts_on_them():
    text = ended(sys.executable, "-c", FLOOD).stderr
    assert text.count("hostile") == LINES
    assert text.count("Error handling request") == LINES
    assert text.count("honest") == 1
    assert text.count("regressed: torch 2.12 ?[2J\\n? -> 2.13") == 1
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert len(text) < 200_000


def test_a_cause_gets_its_next_lines_a_minute_later(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace()
    lines = [record("hostile") for _ in range(1_000)]
    assert [line for line in lines if pace.filter(line)] == lines[:LINES]
    last = lines[LINES - 1].msg
    assert isinstance(last, dict)
    assert "left out" in last["note"]
    assert pace.filter(record("honest"))
    now = SECONDS
    assert pace.filter(record("hostile"))
