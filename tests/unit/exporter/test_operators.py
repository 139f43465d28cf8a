"""The live judge names operators: from the runs that a probe sends to the store, the sentence and metrics."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.contract.report import Family
from infercanary.exporter.judging import families as metrics
from infercanary.exporter.judging.findings import Findings
from infercanary.judge import profiles
from infercanary.judge.drift import Drift
from infercanary.judge.operators import MOST, Operators, OperatorShift
from infercanary.judge.profiles import FIRST, KEPT, merged, of_runs, pack, unpacked
from infercanary.judge.result import Causes, Result
from tests.results import findings_of, upgraded
from tests.unit.exporter.factories import Judged, collecting, generation, probe, report, run, runs

CONV = OperatorShift("aten::conv2d", 0.01, 0.02, 1.0, "grew")


def profile(seconds: float, at: float) -> Profile:
    conv = ProfileRow("aten::conv2d", "aten::mm", "cpu", "1x3x8x8 float", 1.0, (seconds - 0.002,) * 5)
    return Profile(at, "torch", "ok", (seconds,) * 5, (0.002,) * 5, (0.0,) * 5, (conv,))


def family(found: Findings, name: str) -> Family:
    return {family.name: family for family in metrics.families(found, "a")}[f"infercanary_{name}"]


def test_a_regression_names_the_operator_when_its_profile_comes() -> None:
    judged = Judged()

    def take(boot: str, image: str, seconds: float, count: int, profiled: int) -> Findings:
        several = [
            msgspec.structs.replace(run, profile=profile(seconds, 1.0) if run.sequence == profiled else None)
            for run in runs(count, seconds=seconds)
        ]
        judged.take(generation(boot, image, profiles=merged({}, of_runs(several))), several)
        return {"c": judged.finding()}

    take("b1", "sha256:1", 0.02, 192, 1)
    late = take("b2", "sha256:2", 0.04, 192, -1)
    assert late["c"].result.state == "regressed" and "conv2d" not in late["c"].sentence
    found = take("b2", "sha256:2", 0.04, 2, 1)
    assert "conv2d 18 → 38 ms (100 % of the change)" in found["c"].sentence
    [point] = family(found, "shift_operator_seconds").points
    assert point.labels == ("c", "aten::conv2d", "grew") and point.value == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize(
    ("state", "explains", "count"),
    [
        ("regressed", "explained", 1), ("improved", "explained", 1), ("equivalent", "explained", 0),
        ("inconclusive", "explained", 0), ("regressed", "outside", 0), ("regressed", None, 0),
    ],
)  # fmt: skip
def test_without_a_change_or_an_explanation_there_is_no_metric(state: Any, explains: Any, count: int) -> None:
    result = upgraded(state, causes=Causes(operators=explains and Operators(explains, (CONV,))))
    assert len(family(findings_of({"c": result}), "shift_operator_seconds").points) == count


def test_a_canary_has_ten_of_them_at_most_with_short_names() -> None:
    shifts = [
        msgspec.structs.replace(CONV, operator=f"aten::{i}" + "x" * 200, after=0.01 * (i + 2))
        for i in range(MOST)
    ]
    causes = Causes(operators=Operators("explained", (*shifts,)))
    points = family(findings_of({"c": upgraded(causes=causes)}), "shift_operator_seconds").points
    assert len(points) == MOST
    assert all(len(text.encode()) <= 120 for point in points for text in point.labels)


def test_a_drifts_operators_are_in_the_alert() -> None:
    drift = Drift(shift=0.5, onset=1.0, operators=Operators("explained", (CONV,)))
    found = findings_of({"c": Result(state="no_baseline")}, drifts={"c": {"a": drift}})
    [point] = family(found, "drift_info").points
    assert point.labels == ("c", "conv2d 10 → 20 ms (100 % of the change)")


def test_profiles_are_kept_once_the_first_and_the_last_ones_and_packed() -> None:
    packed = [pack(profile(0.02, 1.7e9 + 600.0 * i)) for i in range(10)]
    kept = (*packed[:FIRST], *packed[-KEPT:])
    for before, after in ((packed[:3], packed[1:]), (packed[5:], packed[:5])):
        assert merged({"c": (*before,)}, {"c": (*after,)}) == {"c": kept}, "in order of time"
    torn = packed[1][:-1], b"torn", packed[0][:8] + b"torn"
    assert [*unpacked([*torn, packed[0]])] == [profile(0.02, 1.7e9)]
    many: profiles.Packed = {f"c{i}": (packed[0],) for i in range(2000)}
    size = sum(len(body) for bodies in merged({}, many).values() for body in bodies)
    assert (128 << 10) - len(packed[0]) < size <= 128 << 10, "of a probe that invents names"


async def test_of_a_report_that_is_full_of_profiles_few_are_packed_by_the_worker_whose_time_its_probe_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe may send 10,000, at each poll."""
    threads: list[str] = []

    def seen(one: Profile) -> bytes:
        threads.append(threading.current_thread().name)
        return pack(one)

    monkeypatch.setattr(profiles, "pack", seen)
    collector, asked = collecting(), probe()
    same = [run(0, "c", started_at=1.0, profile=profile(0.1, float(n))) for n in range(100)]
    for polls in (1, 2):
        await collector.absorb(asked, report("boot", same))
        assert len(threads) == polls * (FIRST + KEPT), "not one for each run that it repeats"
    await collector.close()
    assert threading.main_thread().name not in threads and asked.runs_collected == 1
    kept = asked.generations["boot"].profiles["c"]
    assert [one.taken_at for one in unpacked(kept)] == [0, 1, 96, 97, 98, 99]
