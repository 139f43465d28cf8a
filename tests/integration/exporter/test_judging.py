"""Runs of a probe, through a real exporter and its store, to a verdict in the scrape, on the page and for a rollout."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from infercanary.contract.report import Run

BEGIN = time.time() - 86_400


def runs(count: int, seconds: float, begin: float) -> list[Run]:
    rng = random.Random(f"{seconds} {begin}")
    found = []
    for i in range(count):
        median, at = seconds * rng.lognormvariate(0, 0.005), begin + 10 * i
        controls = {"cpu_spin": 0.0004 * rng.lognormvariate(0, 0.003)}
        latencies = (median * 0.99, median, median * 1.02)
        found.append(Run(i, "resnet18", at, at, "ok", latencies, {"compute": median}, controls=controls))
    return found


def restart(probe: Any, boot: str, torch: str, seconds: float, hour: int) -> None:
    """Another start: of another image, where torch is another one."""
    probe.boot_id, probe.environment = boot, {"torch": torch}
    probe.runs = runs(200, seconds, BEGIN + 3600 * hour)


async def test_an_upgrade_is_judged_shown_and_remembered(watch: Any, good_probe: Any, tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    store = str(folder / "judge.sqlite")
    labels = {"service": "resnet", "container": "a", "canary": "resnet18"}
    of_latency = {**labels, "measure": "latency"}
    restart(good_probe, "old-0", "2.7.0", 0.020, 0)
    async with watch({"a": good_probe}, store=store) as up:
        # A store that fails costs verdicts and nothing else; what came meanwhile is stored once the folder is there.
        await up.appears("infercanary_up", container="a")
        await up.reaches(1, "infercanary_store_errors_total")
        assert await up.value("infercanary_store_up") == 0
        folder.mkdir()
        for hour in range(4):
            restart(good_probe, f"old-{hour}", "2.7.0", 0.020, hour)
            await up.reaches(200 * (hour + 1), "infercanary_stored_runs_total")
        await up.becomes(1, "infercanary_verdict", verdict="no_baseline", **of_latency)
        restart(good_probe, "new", "2.13.0", 0.0226, 4)
        await up.becomes(1000, "infercanary_stored_runs_total")
        await up.becomes(1, "infercanary_verdict", verdict="regressed", **of_latency)
        shift, low, high = [
            await up.value(f"infercanary_shift_{end}ratio", **of_latency) for end in ("", "low_", "high_")
        ]
        assert 0.12 < shift < 0.14 and 0.03 < low < shift < high
        assert abs(await up.value("infercanary_shift_host_ratio", **labels)) < 0.01
        assert abs(await up.value("infercanary_baseline_seconds", **labels) - 0.020) < 0.0003
        changed = {"component": "torch", "old": "2.7.0", "new": "2.13.0"}
        shown: list[tuple[str, dict[str, str], int]] = [
            ("shift_cause", {"cause": "image"}, 1),
            ("upgrade_component_info", changed, 1),
            ("judged_runs", {}, 192),
            ("judge_aa_tests", {}, 3),
            ("judge_aa_alarms", {}, 0),
        ]
        for name, more, value in shown:
            assert await up.value(f"infercanary_{name}", **more, **labels) == value, name
        assert await up.labels("infercanary_control_baseline_seconds")
        assert await up.value("infercanary_store_up") == 1
        page = (await up.get("/"))[1]
        assert 'class="verdict regressed"' in page
        assert "image; torch 2.7.0 → 2.13.0; compute phase; controls flat" in page
        assert page.count('aria-label="medians of runs') == 1
    # The next exporter finds all of that in the store, and takes no run twice.
    async with watch({"a": good_probe}, store=store) as up:
        await up.becomes(1, "infercanary_verdict", verdict="regressed", **of_latency)
        assert await up.value("infercanary_stored_runs_total") == 0
        # After the next upgrade it is history.
        restart(good_probe, "back", "2.7.0", 0.020, 5)
        await up.becomes(1, "infercanary_verdict", verdict="improved", **of_latency)
        page = (await up.get("/"))[1]
        assert 'class="verdict improved"' in page and " after a rollback: " in page
        assert '<li class="regressed">' in page and "image; torch 2.7.0 → 2.13.0" in page


class Rollout:
    """Asks as Argo Rollouts and Flagger do."""

    def __init__(self, exporter: Any, eventually: Any) -> None:
        self._exporter, self._eventually = exporter, eventually

    async def verdict(self, more: str = "") -> dict[str, Any]:
        status, text = await self._exporter.get(f"/api/v1/verdict?service=resnet{more}")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    async def reads(self, verdict: str) -> None:
        async def does() -> bool:
            return bool((await self.verdict())["verdict"] == verdict)

        await self._eventually(does)

    async def webhooks(self, **metadata: str) -> list[int]:
        """The answers of the gate of a promotion and of a rollback."""
        call = {"name": "resnet", "namespace": "test", "metadata": {"namespace": "", **metadata}}
        statuses = []
        for path in ("gate", "rollback"):
            async with self._exporter.session.post(
                f"{self._exporter.url}/api/v1/{path}", json=call
            ) as response:
                statuses.append(int(response.status))
        return statuses


async def test_a_rollout_waits_and_then_aborts(watch: Any, eventually: Any, good_probe: Any) -> None:
    stable, canary, begin = good_probe, type(good_probe)(), time.time() - 10_000
    stable.runs = runs(400, 0.020, begin)
    canary.environment, canary.boot_id = {"torch": "2.13.0"}, "boot-2"
    answers = False

    async def answer(request: web.Request) -> web.Response:
        return await canary.answer(request) if answers else web.Response(status=503)

    late = web.Application()
    late.router.add_get("/report", answer)
    async with watch({"a": stable, "x": late}) as up:
        rollout = Rollout(up, eventually)
        # Before anything was judged, while the new container starts, and after its first runs: wait.
        assert (await rollout.verdict())["verdict"] == "unknown"
        await rollout.reads("no_baseline")
        assert await rollout.webhooks() == [412, 412]
        answers, canary.runs = True, runs(3, 0.026, begin + 4000)
        await rollout.reads("settling")
        assert await rollout.webhooks() == [412, 412]
        stable.runs, canary.runs = runs(600, 0.020, begin), runs(192, 0.026, begin + 4000)
        await rollout.reads("regressed")
        given = await rollout.verdict()
        assert given["sentence"].startswith("regressed +") and given["canaries"] == {"resnet18": "regressed"}
        assert 0.1 < given["low"] < given["shift"] < given["high"] < 0.5
        assert await rollout.webhooks() == [412, 200]
        # Of these containers no image is known, so that one which is named may be another one.
        assert await rollout.webhooks(image="search:v2") == [412, 412]
        assert (await rollout.verdict("&canary=resnet18"))["verdict"] == "regressed"
        assert (await rollout.verdict("&namespace=ml"))["verdict"] == "unknown"
        async with up.session.post(f"{up.url}/api/v1/gate", data=b" " * 70_000) as response:
            assert response.status == 413
        # The new container is gone: its verdict no longer aborts anything.
        answers = False
        await rollout.reads("unknown")
        assert await rollout.webhooks() == [412, 412]
