"""From a probe's runs to a verdict in the scrape, on the status page and for a rollout, with a real exporter."""

import json
import random
import time

from infercanary.contract.report import Run

BEGIN = time.time() - 86_400


def runs(count, seconds, begin):
    rng = random.Random(f"{seconds} {begin}")
    found = []
    for i in range(count):
        median, at = seconds * rng.lognormvariate(0, 0.005), begin + 10 * i
        controls = {"cpu_spin": 0.0004 * rng.lognormvariate(0, 0.003)}
        latencies = (median * 0.99, median, median * 1.02)
        found.append(Run(i, "resnet18", at, at, "ok", latencies, {"compute": median}, controls=controls))
    return found


def restart(probe, boot, torch, seconds, hour):
    """Restart the probe. A different version of torch counts as a different image."""
    probe.boot_id, probe.environment = boot, {"torch": torch}
    probe.runs = runs(200, seconds, BEGIN + 3600 * hour)


async def test_an_upgrade_is_judged_shown_and_remembered(watch, good_probe, tmp_path):
    folder = tmp_path / "missing"
    store = str(folder / "judge.sqlite")
    labels = {"service": "resnet", "container": "a", "canary": "resnet18"}
    of_latency = {**labels, "measure": "latency"}
    restart(good_probe, "old-0", "2.7.0", 0.020, 0)
    async with watch({"a": good_probe}, store=store) as up:
        # If the store fails, only verdicts are missing. As soon as the folder exists, the exporter stores the
        # waiting runs.
        await up.appears("infercanary_up", container="a")
        await up.reaches(1, "infercanary_store_errors_total")
        assert await up.value("infercanary_store_up") == 0
        assert await up.value("infercanary_store_set_aside_timestamp_seconds") is None
        folder.mkdir()
        for hour in range(4):
            restart(good_probe, f"old-{hour}", "2.7.0", 0.020, hour)
            await up.reaches(200 * (hour + 1), "infercanary_stored_runs_total")
        await up.becomes(1, "infercanary_verdict", verdict="no_baseline", **of_latency)
        restart(good_probe, "new", "2.13.0", 0.0226, 4)
        await up.becomes(1000, "infercanary_stored_runs_total")
        await up.becomes(1, "infercanary_verdict", verdict="regressed", **of_latency)
        for name, more, low, high in (
            ("shift_ratio", {"measure": "latency"}, 0.12, 0.14),
            ("shift_host_ratio", {}, -0.01, 0.01),
            ("baseline_seconds", {}, 0.0197, 0.0203),
            ("control_baseline_seconds", {}, 0.00039, 0.00041),
            ("shift_cause", {"cause": "image"}, 1, 1),
            ("upgrade_component_info", {"component": "torch", "old": "2.7.0", "new": "2.13.0"}, 1, 1),
            ("judged_runs", {}, 192, 192),
            ("judge_aa_tests", {}, 3, 3),
        ):
            assert low <= await up.value(f"infercanary_{name}", **more, **labels) <= high, name
        assert await up.value("infercanary_store_up") == 1
        page = await up.page()
        assert 'class="verdict regressed"' in page
        assert "image; torch 2.7.0 → 2.13.0; compute phase; controls flat" in page
        assert page.count('aria-label="medians of runs') == 1
    # The next exporter reads all of this from the store, and stores no run twice.
    async with watch({"a": good_probe}, store=store) as up:
        await up.becomes(1, "infercanary_verdict", verdict="regressed", **of_latency)
        assert await up.value("infercanary_stored_runs_total") == 0
        # After the next upgrade, this verdict is a past verdict.
        restart(good_probe, "back", "2.7.0", 0.020, 5)
        await up.becomes(1, "infercanary_verdict", verdict="improved", **of_latency)
        page = await up.page()
        assert 'class="verdict improved"' in page
        assert " after a rollback: " in page
        assert '<li class="regressed">' in page
        assert "image; torch 2.7.0 → 2.13.0" in page


async def test_a_rollout_waits_and_then_aborts(watch, eventually, good_probe):
    stable, canary, begin = good_probe, type(good_probe)(), time.time() - 10_000
    stable.runs = runs(400, 0.020, begin)
    canary.environment, canary.boot_id, canary.status = {"torch": "2.13.0"}, "boot-2", 503
    async with watch({"a": stable, "x": canary}) as up:

        async def verdict(more=""):
            return json.loads((await up.get(f"/api/v1/verdict?service=resnet{more}"))[1])["verdict"]

        async def gates(**metadata):
            """Return the answers to Flagger's questions about promotion and rollback."""
            call = {"name": "resnet", "namespace": "test", "metadata": {"namespace": "", **metadata}}
            return [(await up.get(f"/api/v1/{path}", "POST", json=call))[0] for path in ("gate", "rollback")]

        async def says(expected, *statuses):
            await eventually(verdict, lambda found: found == expected)
            assert await gates() == [*statuses]

        # The answer is "wait" before the first judgement, during the new container's start, and after its
        # first runs.
        assert await verdict() == "unknown"
        await says("no_baseline", 412, 412)
        canary.status, canary.runs = 200, runs(3, 0.026, begin + 4000)
        await says("settling", 412, 412)
        stable.runs, canary.runs = runs(600, 0.020, begin), runs(192, 0.026, begin + 4000)
        await says("regressed", 412, 200)
        # The images of these containers are unknown, so they may differ from a named image.
        assert await gates(image="search:v2") == [412, 412]
        assert await verdict("&namespace=ml") == "unknown"
        assert (await up.get("/api/v1/gate", "POST", data=b" " * 70_000))[0] == 413
        # The new container has ended, so its verdict no longer aborts a rollout.
        canary.status = 503
        await says("unknown", 412, 412)
