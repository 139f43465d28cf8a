"""Complaint: why a part of the probe does not work, logged once per change."""

from __future__ import annotations

import logging

log = logging.getLogger("infercanary.probe")


class Complaint:
    """Logs the state of one part of the probe: a reason if the part fails, and its recovery.

    Args:
        part: Subject of the lines in the log: ``journal /data/runs.jsonl``.
    """

    def __init__(self, part: str) -> None:
        self.text = ""
        """Present reason; empty while the part works."""
        self._part = part

    def set(self, text: str, level: int = logging.WARNING) -> None:
        """Set the reason, or "" if the part works. A reason that is logged already is not logged again."""
        if text != self.text:
            log.log(level if text else logging.INFO, "%s: %s", self._part, text or "works again")
        self.text = text
