"""The live judge names operators: a probe's runs, the sentence and the metrics."""

import threading

import msgspec

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.judge import profiles
from infercanary.judge.profiles import FIRST, KEPT, merged, of_runs, pack, unpacked
from tests.unit.exporter.factories import Judged, collecting, generation, probe, report, run, runs


def profile(seconds, at):
    conv = ProfileRow("aten::conv2d", "aten::mm", "cpu", "1x3x8x8 float", 1.0, (seconds - 0.002,) * 5)
    return Profile(at, "torch", "ok", (seconds,) * 5, (0.002,) * 5, (0.0,) * 5, (conv,))


def test_a_regression_names_the_operator_when_its_profile_comes():
    judged = Judged()

    def take(boot, seconds, count, profiled):
        several = [
            msgspec.structs.replace(run, profile=profile(seconds, 1.0) if run.sequence == profiled else None)
            for run in runs(count, seconds=seconds)
        ]
        judged.take(generation(boot, f"sha256:{boot}", profiles=merged({}, of_runs(several))), several)
        return judged.finding()

    take("1", 0.02, 192, 1)
    late = take("2", 0.04, 192, -1)
    assert late.result.state == "regressed"
    assert "conv2d" not in late.sentence
    assert "conv2d 18 → 38 ms (100 % of the change)" in take("2", 0.04, 2, 1).sentence


def test_profiles_are_kept_once_the_first_and_the_last_ones_and_packed():
    packed = [pack(profile(0.02, 1.7e9 + 600.0 * i)) for i in range(10)]
    kept = (*packed[:FIRST], *packed[-KEPT:])
    assert merged({"c": (*packed[5:],)}, {"c": (*packed[:6],)}) == {"c": kept}
    torn = packed[1][:-1], b"torn", packed[0][:8] + b"torn"
    assert [*unpacked([*torn, packed[0]])] == [profile(0.02, 1.7e9)]
    many: profiles.Packed = {f"c{i}": (packed[0],) for i in range(2000)}
    size = sum(len(body) for bodies in merged({}, many).values() for body in bodies)
    # a limit applies to the size, because a probe may invent names
    assert (128 << 10) - len(packed[0]) < size <= 128 << 10


async def test_few_profiles_of_a_report_are_packed_and_outside_of_the_main_thread(
    monkeypatch,
):
    """A probe may send 10,000 profiles in the answer to each poll."""
    threads = []

    def seen(one):
        threads.append(threading.current_thread().name)
        return pack(one)

    monkeypatch.setattr(profiles, "pack", seen)
    collector, asked = collecting(), probe()
    same = [run(0, "c", started_at=1.0, profile=profile(0.1, float(n))) for n in range(100)]
    for polls in (1, 2):
        await collector.absorb(asked, report("boot", same))
        assert len(threads) == polls * (FIRST + KEPT)
    await collector.close()
    assert threading.main_thread().name not in threads
    assert asked.runs_collected == 1
    kept = asked.generations["boot"].profiles["c"]
    assert [one.taken_at for one in unpacked(kept)] == [0, 1, 96, 97, 98, 99]
