"""Runs of a probe, through a real exporter and its store, to a verdict in the scrape and on the page."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from infercanary.contract.report import Run


def runs(count: int, seconds: float, begin: float, control: float = 0.0004) -> list[Run]:
    rng = random.Random(f"{seconds} {begin}")
    found = []
    for i in range(count):
        median = seconds * rng.lognormvariate(0, 0.005)
        found.append(
            Run(
                sequence=i, canary="resnet18", scheduled_at=begin + 10 * i, started_at=begin + 10 * i, outcome="ok",
                latencies=(median * 0.99, median, median * 1.02), phases={"compute": median},
                controls={"cpu_spin": control * rng.lognormvariate(0, 0.003)},
            )
        )  # fmt: skip
    return found


def restart(probe: Any, boot: str, torch: str, seconds: float, hour: int) -> None:
    """Another start: of another image, where torch is another one."""
    probe.boot_id, probe.environment = boot, {"torch": torch}
    probe.runs = runs(200, seconds, time.time() - 86_400 + 3600 * hour)


async def test_an_upgrade_is_judged_shown_and_remembered(
    exporter: Callable[..., Any],
    config: Callable[..., Any],
    good_probe: Any,
    serve: Callable[..., Awaitable[str]],
    eventually: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    url = await serve(good_probe.app())
    store = str(tmp_path / "judge.sqlite")
    labels: Mapping[str, str] = {"service": "resnet", "container": "a", "canary": "resnet18"}
    of_latency = {**labels, "measure": "latency"}
    async with exporter(config(("a", url), store=store)) as up:

        async def collected(count: int) -> None:
            await eventually(lambda: _at_least(up, "infercanary_stored_runs_total", count), 15)

        for hour in range(4):
            restart(good_probe, f"old-{hour}", "2.7.0", 0.020, hour)
            await collected(200 * (hour + 1))
        assert (
            await eventually(lambda: up.value("infercanary_verdict", verdict="no_baseline", **of_latency))
            == 1
        )
        restart(good_probe, "new", "2.13.0", 0.0226, 4)
        await collected(1000)
        await eventually(lambda: _at_least(up, "infercanary_verdict", 1, verdict="regressed", **of_latency))
        shift, low, high = [
            await up.value(f"infercanary_shift_{name}ratio", **of_latency) for name in ("", "low_", "high_")
        ]
        assert 0.12 < shift < 0.14 and 0.03 < low < shift < high
        assert await up.value("infercanary_shift_cause", cause="image", **labels) == 1
        assert abs(await up.value("infercanary_shift_host_ratio", **labels)) < 0.01
        assert abs(await up.value("infercanary_baseline_seconds", **labels) - 0.020) < 0.0003
        changed = {"component": "torch", "old": "2.7.0", "new": "2.13.0"}
        assert await up.value("infercanary_upgrade_component_info", **changed, **labels) == 1
        assert await up.labels("infercanary_control_baseline_seconds")
        assert await up.value("infercanary_judged_runs", **labels) == 192
        assert await up.value("infercanary_judge_aa_tests", **labels) == 3
        assert await up.value("infercanary_judge_aa_alarms", **labels) == 0
        assert await up.value("infercanary_store_up") == 1
        _, page = await up.get("/")
        assert 'class="verdict regressed"' in page
        assert "image; torch 2.7.0 → 2.13.0; compute phase; controls flat" in page
        assert page.count('aria-label="medians of runs') == 1
    # The next exporter finds all of that in the store, and takes no run twice.
    async with exporter(config(("a", url), store=store)) as up:
        await eventually(lambda: _at_least(up, "infercanary_verdict", 1, verdict="regressed", **of_latency))
        assert await up.value("infercanary_stored_runs_total") == 0
        # After the next upgrade it is history.
        restart(good_probe, "back", "2.7.0", 0.020, 5)
        await eventually(lambda: _at_least(up, "infercanary_verdict", 1, verdict="improved", **of_latency))
        _, page = await up.get("/")
        assert 'class="verdict improved"' in page
        assert " after a rollback: " in page
        assert '<li class="regressed">' in page and "image; torch 2.7.0 → 2.13.0" in page


async def test_a_reload_of_the_judges_settings_judges_again(
    exporter: Callable[..., Any],
    good_probe: Any,
    serve: Callable[..., Awaitable[str]],
    eventually: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "exporter.yaml"
    probes = f"probes: [{{url: '{await serve(good_probe.app())}', service: resnet, container: a}}]"
    rest = f"poll_seconds: 0.1\ndiscovery: none\n{probes}\n"
    path.write_text(rest)
    async with exporter(path=path) as up:
        restart(good_probe, "old", "2.7.0", 0.020, 0)
        await eventually(lambda: _at_least(up, "infercanary_stored_runs_total", 200), 15)
        restart(good_probe, "new", "2.13.0", 0.026, 4)
        await eventually(
            lambda: _at_least(up, "infercanary_verdict", 1, verdict="regressed", measure="latency"), 15
        )
        path.write_text(f"judge: {{smallest_effect: 0.5}}\n{rest}")
        await eventually(
            lambda: _at_least(up, "infercanary_verdict", 1, verdict="equivalent", measure="latency"), 15
        )
        [shown] = await up.labels("infercanary_verdict_info")
        assert shown["sentence"].startswith(("equivalent +29", "equivalent +30", "equivalent +31"))
        _, page = await up.get("/")
        _, rest = shown["sentence"].split(" ", 1)
        assert rest.partition(":")[0] in page, "the page has the same words"


async def test_a_store_that_fails_costs_verdicts_and_nothing_else(
    exporter: Callable[..., Any],
    config: Callable[..., Any],
    good_probe: Any,
    serve: Callable[..., Awaitable[str]],
    eventually: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    url = await serve(good_probe.app())
    folder = tmp_path / "missing"
    restart(good_probe, "old", "2.7.0", 0.020, 0)
    async with exporter(config(("a", url), store=str(folder / "judge.sqlite"))) as up:
        await eventually(lambda: _at_least(up, "infercanary_store_errors_total", 1))
        assert await up.value("infercanary_store_up") == 0
        assert await up.value("infercanary_up", container="a") == 1
        # What came meanwhile was kept, and is stored once the folder is there.
        folder.mkdir()
        await eventually(lambda: _at_least(up, "infercanary_stored_runs_total", 200), 15)
        assert await up.value("infercanary_store_up") == 1


async def _at_least(up: Any, name: str, count: float, **labels: str) -> bool:
    return ((await up.value(name, **labels)) or 0) >= count
