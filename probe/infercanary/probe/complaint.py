"""Complaint: the reason why a part of the probe fails. Each change of the reason is logged once."""

from __future__ import annotations

import logging

log = logging.getLogger("infercanary.probe")


class Complaint:
    """Logs why one part of the probe fails, and when it recovers.

    Args:
        part: Subject of the lines in the log: ``journal /data/runs.jsonl``.
    """

    def __init__(self, part: str) -> None:
        self.text = ""
        """Present reason; empty while the part works."""
        self._part = part

    def set(self, text: str, level: int = logging.WARNING) -> None:
        """Set the reason, or "" if the part works. Log a reason only when it changes."""
        if text != self.text:
            log.log(level if text else logging.INFO, "%s: %s", self._part, text or "works again")
        self.text = text
