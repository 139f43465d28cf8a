import asyncio
import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from worst import report as worst_report

from infercanary.contract.report import Metric, encode
from infercanary.exporter import limits
from infercanary.exporter.expose import write
from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import (
    BASE_BYTES,
    PROBE_BYTES,
    UNLIMITED,
    Account,
    Share,
    Shares,
    Totals,
    memory_limit,
)
from infercanary.judge.verdict import Judge
from tests.scenarios import cases, scenarios
from tests.unit.exporter.factories import collecting, probe, report

SERIES = Metric("infercanary_series", "gauge", "Series.", ("name",))


def lines_of(count):
    families = (Metric(f"infercanary_many_{n}", "gauge", "Many.").family(1.0) for n in range(count))
    return [write(family, {"service": "s"}) for family in families]


@given(st.lists(st.integers(0, 1_000), max_size=20), st.integers(1, 5_000))
def test_each_has_its_part_at_once_and_all_together_never_more_than_the_total(wanted, total):
    share = Share(total)
    share.probes = max(1, len(wanted))
    granted = {("", "s", str(n)): 0 for n in range(len(wanted))}
    for key, size in [*zip(granted, wanted, strict=True)] * 2:
        granted[key] = share.grant(key, size)
        assert sum(granted.values()) <= total
        assert granted[key] >= min(size, total // 2 // share.probes)
    if sum(wanted) <= total // 2:
        assert [*granted.values()] == wanted
    for key in granted:
        share.grant(key, 0)
    assert share.grant(("", "s", "new"), total) >= total // 2


def test_beside_probes_that_show_too_much_an_honest_one_shows_all(monkeypatch):
    monkeypatch.setattr(limits, "SHOWN_BYTES", 40_000)
    shares, many, keys = Shares(), lines_of(1_000), [("", "s", f"{number}") for number in range(12)]
    accounts = {key: Account() for key in keys}
    shares.admitted({key: probe(key[-1]).container for key in keys}, ())
    first, honest = keys[0], keys[11]
    shown = {key: shares.fitting(key, many[:8] if key == honest else many, accounts[key]) for key in keys * 2}
    assert shown[honest] == many[:8]
    assert not accounts[honest].exceeded
    assert sum(map(len, shown.values())) <= 40_000 / 200  # a series counts as at least 200 bytes
    assert shown[first] == many[: len(shown[first])]
    assert accounts[first].exceeded["shown_bytes"] == 2
    for key in keys:
        shares.forget(key)
    alone = shares.fitting(("", "t", "0"), many, Account())
    assert len(alone) == (20_000 + 20_000 // 12) // 200


def test_a_family_of_a_size_that_no_honest_container_has_is_not_shown():
    huge = write(SERIES.family({("x" * 250 + str(n),): 1.0 for n in range(2_500)}), {})
    account, usual = Account(), lines_of(1)
    assert Shares().fitting(("", "s", "c"), [huge, *usual], account) == usual
    assert account.exceeded == {"shown_bytes": 1}


def test_containers_that_do_not_fit_are_counted_and_named_and_those_polled_already_stay():
    shares = Shares(BASE_BYTES + 2 * PROBE_BYTES)
    found = {each.key: each.container for each in map(probe, "abc")}
    a, b, c = found
    with capture_logs() as lines:
        for polled in ([c], [a, c]):
            assert [*shares.admitted(found, polled)] == [a, c]
    [line], [family] = lines, shares.families()
    assert (line["refused"], line["polled"], line["log_level"]) == (["s/b"], 2, "warning")
    assert [point.value for point in family.points] == [1.0]
    del found[c]
    assert [*shares.admitted(found, [a])] == [a, b]
    assert not shares.refused


async def test_verdicts_count_in_what_a_probe_shows(monkeypatch):
    monkeypatch.setattr(limits, "SHOWN_BYTES", 180_000)
    judging, asked = Judging(None), probe()
    collector, found = collecting(judging), Finding(result=Judge().verdict([], [], "model"), sentence="")
    reported = SERIES.family({(f"{n}",): 1.0 for n in range(100)})
    shown = []
    for canaries in (0, 20, 200):
        judging.findings[asked.container.service_key] = {f"{n}": found for n in range(canaries)}
        assert not asked.account.exceeded
        await collector.absorb(asked, report(families=[reported]))
        collector.show(asked)
        shown.append(sum(each.text.count(b"\n") for each in (*asked.verdicts, *asked.lines)))
    assert shown[0] == 100
    assert 200 < shown[1] <= 600
    assert shown[2] <= 600
    assert asked.account.exceeded["shown_bytes"]
    assert asked.lines == []
    await collector.close()


def test_two_hundred_probes_fit_into_composes_limit_and_one_into_any():
    assert Totals.within(512 << 20).probes >= 200
    assert Totals.within(16 << 20).probes == 1
    assert Totals.within(UNLIMITED)[1:] == (80_000_000, 128 << 20, 32 << 20)


@cases(
    scenarios(f"""
0::/\\n                                           | memory.max                   | 536870912           | {512 << 20}
0::/\\n                                           | memory.max                   | max                 | {UNLIMITED}
0::/a/b\\n                                        | a/b/memory.max               | 900                 | 900
4:memory:/docker/x\\n1:name=systemd:/\\n          | memory/memory.limit_in_bytes | 4096                | 4096
4:cpu,memory:/\\n                                 | memory/memory.limit_in_bytes | 9223372036854771712 | {UNLIMITED}
0::/../../x\\n                                    | memory.max                   | 7                   | 7
odd                                               | memory.max                   | 7                   | 7
                                                  | none                         |                     | {UNLIMITED}
"""),
)
def test_the_limit_of_its_own_control_group(of_process, file, limit, expected, tmp_path):
    path, process = tmp_path / "cgroup" / file, tmp_path / "process"
    path.parent.mkdir(parents=True)
    path.write_text(f"{limit}\n")
    if of_process:
        process.write_text(of_process)
    assert memory_limit(tmp_path / "cgroup", process) == int(expected)


async def test_the_largest_probe_stays_within_its_reserved_memory():
    """A probe uses up to two thirds of its reserved memory. The rest is for ``/metrics``, answers and the queue."""
    collector = collecting(Judging(None, queue_bytes=0))
    collector.shares.shown.total = 1

    async def full():
        asked = probe("1")
        for boot in (0, 1):
            asked.account = Account()
            await collector.absorb(asked, encode(worst_report(1, boot)))
            collector.show(asked)
        return asked

    tracemalloc.start()
    asked = await full()
    await asyncio.sleep(0)  # until then, asyncio keeps the last answer
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(asked.sequences) == 512
    assert len(asked.generations) == 2
    await collector.close()
    assert PROBE_BYTES / 4 < held < PROBE_BYTES * 2 / 3, f"{held / 1024:.0f} KiB"
