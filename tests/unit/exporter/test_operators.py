"""The live judge names operators: from the runs that a probe sends to the store, the sentence, metrics and the page."""

from __future__ import annotations

import threading

import msgspec
import pytest

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.contract.report import SCHEMA_VERSION, Report, Run, encode
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging import families as metrics
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.probe_state import PolledProbe
from infercanary.judge import profiles
from infercanary.judge.drift import Drift
from infercanary.judge.model import Generation, ServiceKey
from infercanary.judge.operators import MOST, Operators, OperatorShift
from infercanary.judge.profiles import FIRST, KEPT, merged, of_runs, pack, unpacked
from infercanary.judge.result import Causes, Result, State
from infercanary.pages.from_result import verdict_document
from tests.results import findings_of, upgraded

S = ServiceKey("", "s")


def profile(seconds: float, at: float) -> Profile:
    conv = ProfileRow(
        "aten::conv2d", "aten::mkldnn_convolution", "cpu", "1x3x8x8 float", 1.0, (seconds - 0.002,) * 5
    )
    return Profile(at, "torch", "ok", (seconds,) * 5, (0.002,) * 5, (0.0,) * 5, (conv,))


def runs(count: int, seconds: float) -> list[Run]:
    return [
        Run(sequence=i, canary="c", scheduled_at=10.0 * i, started_at=10.0 * i, outcome="ok",
            latencies=(seconds * (1 + 0.001 * (i % 3)),) * 5, profile=profile(seconds, float(i)) if i == 1 else None)
        for i in range(count)
    ]  # fmt: skip


def generation(boot: str, image: str, of: list[Run]) -> Generation:
    return Generation(
        service="s",
        container="a",
        boot_id=boot,
        started_at=0.0,
        image_id=image,
        profiles=merged({}, of_runs(of)),
    )


def test_a_regression_names_the_operator_in_sentence_metric_and_page() -> None:
    judging = Judging(None)
    for boot, image, seconds in (("b1", "sha256:1", 0.02), ("b2", "sha256:2", 0.04)):
        of = runs(192, seconds)
        judging.submit(generation(boot, image, of), of)
    judging.turn()
    found = judging.findings[S]
    assert found["c"].result.state == "regressed"
    assert "conv2d 18 → 38 ms (100 % of the change)" in found["c"].sentence
    [family] = [
        each for each in metrics.families(found, "a") if each.name == "infercanary_shift_operator_seconds"
    ]
    [point] = family.points
    assert point.labels == ("c", "aten::conv2d", "grew") and point.value == pytest.approx(0.02, rel=1e-3)
    [table] = [
        each for each in verdict_document(found["c"].result, found["c"].sentence, {}).tables if each.rows
    ]
    assert {"aten::conv2d", "18 ms", "38 ms"} <= {*table.rows[0]}


def test_a_profile_that_comes_after_the_verdict_is_named_when_it_comes() -> None:
    judging = Judging(None)
    of = runs(192, 0.02)
    judging.submit(generation("b1", "sha256:1", of), of)
    late = [msgspec.structs.replace(run, profile=None) for run in runs(192, 0.04)]
    judging.submit(generation("b2", "sha256:2", late), late)
    judging.turn()
    assert "conv2d" not in judging.findings[S]["c"].sentence
    again = runs(2, 0.04)
    judging.submit(generation("b2", "sha256:2", again), again)
    judging.turn()
    assert "conv2d 18 → 38 ms" in judging.findings[S]["c"].sentence


def test_without_a_change_or_an_explanation_there_is_no_metric() -> None:
    shift = OperatorShift("aten::conv2d", 0.01, 0.02, 1.0, "grew")

    def points(state: State, of: Operators | None) -> int:
        result = upgraded(state, causes=Causes(operators=of))
        found = findings_of(judgements={"c": result}, sentences={"c": ""})
        [family] = [
            each for each in metrics.families(found, "a") if each.name == "infercanary_shift_operator_seconds"
        ]
        return len(family.points)

    explained = Operators("explained", (shift,))
    assert points("regressed", explained) == points("improved", explained) == 1
    assert points("equivalent", explained) == points("inconclusive", explained) == 0
    assert (
        points("regressed", None)
        == points("regressed", msgspec.structs.replace(explained, state="outside"))
        == 0
    )


def test_a_canary_has_ten_of_them_at_most_with_short_names() -> None:
    shifts = tuple(
        OperatorShift(f"aten::{i}" + "x" * 200, 0.0, 0.001 * (i + 1), 0.1, "grew") for i in range(MOST)
    )
    causes = Causes(operators=Operators("explained", shifts))
    found = findings_of(judgements={"c": upgraded(causes=causes)}, sentences={})
    [family] = [
        each for each in metrics.families(found, "a") if each.name == "infercanary_shift_operator_seconds"
    ]
    assert len(family.points) == MOST
    assert all(len(text.encode()) <= 120 for point in family.points for text in point.labels)


def test_profiles_are_kept_once_the_first_and_the_last_ones_and_packed() -> None:
    packed = [pack(profile(0.02, 1.7e9 + 600.0 * i)) for i in range(10)]
    kept = [*packed[:FIRST], *packed[-KEPT:]]
    assert merged({"c": tuple(packed[:3])}, {"c": tuple(packed[1:])}) == {"c": tuple(kept)}
    later = merged({}, {"c": tuple(packed[4:])})  # of an exporter that was started later
    assert merged({"c": tuple(packed[:5])}, later) == {"c": tuple(kept)}
    assert merged({"c": tuple(packed[5:])}, {"c": tuple(packed[:5])}) == {"c": tuple(kept)}, (
        "in order of time"
    )
    torn = packed[1][:-1], b"torn", pack(profile(0.02, 0.0))[:8] + b"torn"
    assert list(unpacked([*torn, packed[0]])) == [profile(0.02, 1.7e9)]
    many: profiles.Packed = {f"c{i}": (packed[0],) for i in range(2000)}
    size = sum(len(body) for bodies in merged({}, many).values() for body in bodies)
    assert (128 << 10) - len(packed[0]) < size <= 128 << 10, "of a probe that invents names"


def test_a_drifts_operators_are_in_the_alert() -> None:
    shift = OperatorShift("aten::conv2d", 0.01, 0.02, 1.0, "grew")
    drift = Drift(shift=0.5, onset=1.0, operators=Operators("explained", (shift,)))
    [family] = [
        each
        for each in metrics.families(
            findings_of({"c": Result(state="no_baseline")}, drifts={"c": {"a": drift}}), "a"
        )
        if each.name == "infercanary_drift_info"
    ]
    [point] = family.points
    assert point.labels == ("c", "conv2d 10 → 20 ms (100 % of the change)")


def test_of_a_report_that_is_full_of_profiles_few_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe may send 10,000, at each poll."""
    count = 0

    def counted(one: Profile) -> bytes:
        nonlocal count
        count += 1
        return pack(one)

    monkeypatch.setattr(profiles, "pack", counted)
    many = [
        Run(n, f"c{n % 20:02}", float(n), float(n), "ok", (0.1,), profile=profile(0.1, float(n)))
        for n in range(2000)
    ]
    found = of_runs(many)
    assert len(found) == 20 and count == 20 * (FIRST + KEPT)
    kept = [one.taken_at for one in unpacked(found["c03"])]
    assert kept == [3.0, 23.0, 1923.0, 1943.0, 1963.0, 1983.0]
    assert merged(found, found) == found


async def test_profiles_are_packed_by_the_worker_whose_time_its_probe_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []

    def seen(one: Profile) -> bytes:
        threads.append(threading.current_thread().name)
        return pack(one)

    monkeypatch.setattr(profiles, "pack", seen)
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), frozenset())
    probe = PolledProbe(Container(service="s", name="a", url="http://a"))
    same = [Run(0, "c", 0.0, 1.0, "ok", (0.1,), profile=profile(0.1, float(n))) for n in range(100)]
    for polls in (1, 2):
        await collector.absorb(probe, encode(Report(SCHEMA_VERSION, "boot", 0.0, "", 0, (), {}, tuple(same))))
        assert len(threads) == polls * (FIRST + KEPT), "not one for each run that it repeats"
    await collector.close()
    assert threading.main_thread().name not in threads
    assert probe.runs_collected == 1
    assert len(probe.generations["boot"].profiles["c"]) == FIRST + KEPT
