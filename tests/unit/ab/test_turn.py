"""Where the report of a start is read."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from infercanary.ab import turn
from infercanary.ab.interruption import Interruption
from infercanary.ab.turn import Needed
from infercanary.client.fetch import PollError


class Started:
    urls: Sequence[str] = ("http://published", "http://inside")

    def ended(self) -> str:
        return ""

    def last_words(self) -> str:
        return ""

    def end(self) -> None:
        pass


def test_an_address_from_which_nothing_comes_back_does_not_hold_up_the_first_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If Docker runs in a virtual machine, a container's own address does not answer here."""
    asked: list[str] = []

    async def fetched(url: str, cursor: str) -> bytes:
        asked.append(url)
        raise PollError("unreachable" if url == "http://published" else "timeout", "on purpose")

    monkeypatch.setattr(turn, "_fetched", fetched)
    now = time.monotonic()
    start = turn._Asked(Started(), Needed(1, "", 60), now, now + 60, Interruption(), lambda text: None)
    for _ in range(33):
        start._ask()
    assert asked.count("http://published") == 33
    assert asked.count("http://inside") == 3, "and it is not given up: it may be the one that answers"
