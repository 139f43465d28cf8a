"""A rollout's questions to a real exporter, whose probes report a regression of one of two containers."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from infercanary.contract.report import Run

BEGIN = time.time() - 10_000


def runs(count: int, seconds: float, begin: float) -> list[Run]:
    return [
        Run(sequence=i, canary="resnet18", scheduled_at=begin + 10 * i, started_at=begin + 10 * i, outcome="ok",
            latencies=(seconds * (1 + 0.002 * (i % 5)),) * 5, phases={"compute": seconds})
        for i in range(count)
    ]  # fmt: skip


class Rollout:
    """Asks as Argo Rollouts and Flagger do."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    async def verdict(self, query: str = "service=resnet") -> dict[str, Any]:
        status, text = await self._exporter.get(f"/api/v1/verdict?{query}")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    async def webhook(self, path: str, **metadata: str) -> int:
        call = {"name": "resnet", "namespace": "test", "metadata": {"namespace": "", **metadata}}
        url = f"{self._exporter.url}/api/v1/{path}"
        async with self._exporter.session.post(url, json=call) as response:
            return int(response.status)

    async def webhooks(self, **metadata: str) -> Sequence[int]:
        return [await self.webhook(path, **metadata) for path in ("gate", "rollback")]


async def test_a_rollout_waits_and_then_aborts(
    exporter: Callable[..., Any],
    config: Callable[..., Any],
    serve: Callable[..., Awaitable[str]],
    eventually: Callable[..., Awaitable[Any]],
    good_probe: Any,
) -> None:
    stable, canary = good_probe, type(good_probe)()
    stable.runs = runs(400, 0.020, BEGIN)
    canary.environment, canary.boot_id = {"torch": "2.13.0"}, "boot-2"
    answers = False

    async def answer(request: web.Request) -> web.Response:
        return await canary.answer(request) if answers else web.Response(status=503)

    late = web.Application()
    late.router.add_get("/report", answer)
    probes = [("a", await serve(stable.app())), ("x", await serve(late))]
    async with exporter(config(*probes)) as up:
        rollout = Rollout(up)

        async def reads(verdict: str, query: str = "service=resnet") -> bool:
            return bool((await rollout.verdict(query))["verdict"] == verdict)

        # Before anything was judged, while the new container starts, and after its first runs: wait.
        assert (await rollout.verdict())["verdict"] == "unknown"
        await eventually(lambda: reads("no_baseline"), 15)
        assert await rollout.webhooks() == [412, 412]
        answers, canary.runs = True, runs(3, 0.026, BEGIN + 4000)
        await eventually(lambda: reads("settling"), 15)
        assert await rollout.webhooks() == [412, 412]
        stable.runs, canary.runs = runs(600, 0.020, BEGIN), runs(192, 0.026, BEGIN + 4000)
        await eventually(lambda: reads("regressed"), 15)
        given = await rollout.verdict()
        assert given["sentence"].startswith("regressed +") and given["canaries"] == {"resnet18": "regressed"}
        assert 0.1 < given["low"] < given["shift"] < given["high"] < 0.5
        assert await rollout.webhooks() == [412, 200]
        # Of these containers no image is known, so that one which is named may be another one.
        assert await rollout.webhooks(image="search:v2") == [412, 412]
        assert await reads("regressed", "service=resnet&canary=resnet18")
        assert await reads("unknown", "service=resnet&namespace=ml")
        async with up.session.post(f"{up.url}/api/v1/gate", data=b" " * 70_000) as response:
            assert response.status == 413
        # The new container is gone: its verdict no longer aborts anything.
        answers = False
        await eventually(lambda: reads("unknown"), 15)
        assert await rollout.webhooks() == [412, 412]
