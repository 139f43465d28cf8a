"""Who asks at the same time gets the same bytes, and who leaves takes them from nobody."""

from __future__ import annotations

import asyncio

import pytest

from infercanary.exporter import shared_answer
from infercanary.exporter.shared_answer import SharedAnswer


class Maker:
    def __init__(self) -> None:
        self.count = 0
        self.go_on = asyncio.Event()
        self.is_broken = False

    async def __call__(self) -> bytes:
        self.count += 1
        await self.go_on.wait()
        if self.is_broken:
            raise ValueError("broken")
        return b"page %d" % self.count


async def test_many_who_ask_together_are_one_work() -> None:
    maker = Maker()
    answer = SharedAnswer(maker)
    first, *others = [asyncio.create_task(answer.get()) for _ in range(40)]
    await asyncio.sleep(0)
    first.cancel()
    maker.go_on.set()
    pages = [await other for other in others]
    assert maker.count == 1 and all(page is pages[0] for page in pages)
    assert await answer.get() is pages[0], "it is good for a second"


async def test_later_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answer, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(shared_answer, "_TIMES_ITS_WORK", 0.0)
    maker = Maker()
    maker.go_on.set()
    answer = SharedAnswer(maker)
    assert [await answer.get(), await answer.get()] == [b"page 1", b"page 2"]


async def test_what_failed_is_tried_again() -> None:
    maker = Maker()
    maker.go_on.set()
    maker.is_broken = True
    answer = SharedAnswer(maker)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await answer.get()
    maker.is_broken = False
    assert await answer.get() == b"page 3"
