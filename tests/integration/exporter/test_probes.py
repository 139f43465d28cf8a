"""Good and hostile probes over real sockets; a hostile probe must not affect other probes."""

import asyncio

from aiohttp import web

from infercanary.client.fetch import PollError
from infercanary.contract.report import (
    LATENCY,
    Family,
    Point,
    Run,
    encode,
)
from infercanary.exporter import collect, limits
from tests.integration.exporter.processes import comes_true

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
NOTHING_LISTENS = "http://127.0.0.1:1"
FAILURES, REJECTED = "infercanary_poll_failures_total", "infercanary_rejected_total"
COLLECTED = "infercanary_runs_collected_total"


def raw(*answer, again=b"", pause=0.0):
    """Return a handler that sends an answer, and then repeats ``again`` without end."""

    async def handle(_reader, writer):
        writer.write(b"".join(answer))
        await writer.drain()
        while again or pause:
            await asyncio.sleep(pause)
            writer.write(again)
            await writer.drain()

    return handle


def whole(body):
    return raw(OK, b"Content-Length: %d\r\n\r\n" % len(body), body)


# Send many headers at a time, so that their limit applies before the timeout, even on a busy machine.
HEADERS = (b"X-More: " + b"x" * 4000 + b"\r\n") * 50
HOSTILE = {
    "hanging": (raw(pause=60), "timeout"),
    "dripping": (raw(OK, b"Content-Length: 1000000\r\n\r\n", again=b" ", pause=0.02), "timeout"),
    "endless": (raw(OK, b"\r\n", again=b"[" * 65536), "too_large"),
    "one-byte-chunks": (
        raw(OK, b"Transfer-Encoding: chunked\r\n\r\n", again=b"1\r\n \r\n" * 2_000, pause=0.001),
        "malformed",
    ),
    "interim-answers": (raw(again=b"HTTP/1.1 100 Continue\r\n\r\n" * 500, pause=0.001), "http_status"),
    "endless-headers": (raw(b"HTTP/1.1 200 OK\r\n", again=HEADERS), "malformed"),
    "from-the-future": (whole(b'{"schema_version": 2, "all": "new"}'), "schema"),
}
"""Answers without an end, and one that ends; tests/unit/client tests how answers are parsed."""


async def test_each_hostile_probe_costs_only_itself(watch, good_probe, eventually):
    """All hostile probes run at the same time: the exporter still polls the good probe, and reports the correct
    reasons.
    """
    reasons = {name: reason for name, (_, reason) in HOSTILE.items()} | {"refusing": "unreachable"}
    probes = {name: handler for name, (handler, _) in HOSTILE.items()}
    async with watch({**probes, "good": good_probe, "refusing": NOTHING_LISTENS}) as run:

        async def failures():
            return {labels["container"]: labels["reason"] for labels in await run.labels(FAILURES)}

        found = await eventually(failures, lambda found: found.keys() >= reasons.keys())
        # On a busy machine, a poll may time out before the exporter parses its answer.
        late = {name: reasons[name] for name, reason in found.items() if reason == "timeout" != reasons[name]}
        assert found | late == reasons and len(late) <= 3, found
        assert await run.each("infercanary_up") == dict.fromkeys(reasons, 0.0) | {"good": 1.0}
        assert {labels["container"] for labels in await run.labels(f"{LATENCY.name}_count")} == {"good"}
        polls = good_probe.polls
        await comes_true(lambda: good_probe.polls > polls + 5)


async def test_a_poll_that_times_out_as_it_is_stopped_is_stopped(watch, monkeypatch):
    """Regression: a timeout at the same moment lost the cancellation, so the poll continued and the exporter
    never ended.
    """
    polling = asyncio.Event()

    async def times_out(*_):
        polling.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise PollError("timeout", "no complete answer within 30 s") from None
        return b""

    monkeypatch.setattr(collect, "fetch", times_out)

    async def lives():
        async with watch({"one": NOTHING_LISTENS}):
            await polling.wait()

    lived = asyncio.create_task(lives())
    assert (await asyncio.wait([lived], timeout=10))[0] == {lived}


def gauge(name):
    kind = "counter" if name.endswith("_total") else "gauge"
    return Family(name, kind, "Something.", (), (Point((), 1.0),))  # type: ignore[arg-type]


async def test_bad_families_are_rejected_and_good_ones_of_the_same_report_shown(watch, good_probe):
    """A probe could forge a metric of the exporter that METRICS lacks. test_accept.py tests the other reasons."""
    async with watch({"one": good_probe, "refusing": NOTHING_LISTENS}) as run:
        await run.appears(FAILURES)
        await run.appears("infercanary_up", container="one")
        text = (await run.get())[1]
        own = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE infercanary_")}
        own -= {LATENCY.name}
        good_probe.families = [gauge("infercanary_fine"), *map(gauge, own)]
        await run.reaches(len(own), REJECTED, reason="reserved")
        assert {labels["reason"] for labels in await run.labels(REJECTED)} == {"reserved"}
        assert await run.value("infercanary_fine") == await run.value("infercanary_up", container="one") == 1


async def test_data_vanishes_with_the_first_failed_poll_and_comes_back(watch, good_probe):
    async with watch({"one": good_probe}) as run:
        await run.appears("infercanary_latency_seconds_count")
        good_probe.status = 503
        await run.becomes(0, "infercanary_up")
        assert await run.value("infercanary_latency_seconds_count") is None
        assert await run.value("infercanary_container_info") == 1
        aged = await run.value("infercanary_report_age_seconds")
        good_probe.status = 200
        await run.appears("infercanary_up")
        assert await run.value("infercanary_latency_seconds_count") > 0
        assert await run.value("infercanary_report_age_seconds") < aged + 0.5
        assert await run.value(FAILURES, reason="http_status") >= 1


def runs(*bounds, boot_id=""):
    return [Run(number, "resnet18", 0.0, 0.0, "ok", (0.01,), boot_id=boot_id) for number in range(*bounds)]


async def test_each_run_is_taken_once_and_the_lost_ones_are_counted(watch, good_probe):
    good_probe.runs = runs(5)
    good_probe.lost_runs = 100  # these runs were lost before the exporter's first poll
    async with watch({"one": good_probe, "repeating": whole(encode(good_probe.report()))}) as run:
        await run.appears(COLLECTED, container="one")
        assert await run.value("infercanary_runs_lost_total", container="one") == 0
        good_probe.lost_runs = 0
        good_probe.runs += runs(5, 8)
        await run.becomes(8, COLLECTED, container="one")
        assert good_probe.cursors[0] == ""
        assert good_probe.cursors[-1].startswith("boot-1:")
        # The probe restarts, so its sequence starts again. Its journal contains runs of a start that the
        # exporter never polled.
        good_probe.boot_id = "boot-2"
        good_probe.runs = [*runs(2), *runs(4, boot_id="unseen")]
        await run.becomes(4, "infercanary_runs_left_out_total")
        assert await run.value(COLLECTED, container="one") == 14
        assert await run.value(COLLECTED, container="repeating") == 5  # repeated runs count once


async def test_a_probe_on_a_unix_socket(watch, good_probe, tmp_path):
    runner = web.AppRunner(good_probe.app(), access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "probe.sock")).start()
    probes = {"here": f"unix://{tmp_path}/probe.sock", "nowhere": f"unix://{tmp_path}/no.sock"}
    async with watch(probes) as run:
        await run.appears("infercanary_up", container="here")
        await run.appears(FAILURES, container="nowhere", reason="unreachable")
    await runner.cleanup()


async def test_an_answer_that_is_more_than_its_share_of_what_comes_in_is_cut(watch, good_probe, monkeypatch):
    monkeypatch.setattr(limits.Share, "grant", lambda _self, _key, wanted: min(wanted, 100))
    async with watch({"one": good_probe}) as run:
        await run.appears(FAILURES, reason="too_large")
        assert await run.value("infercanary_budget_exceeded_total", budget="held_bytes")
        monkeypatch.undo()
        await run.appears("infercanary_up", container="one")
