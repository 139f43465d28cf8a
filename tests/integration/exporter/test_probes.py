"""Probes over real sockets: good ones, hostile ones, and each costs only itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from infercanary.client.fetch import PollError
from infercanary.contract.report import LADDER, LATENCY, Family, HistogramValue, Point, Run, encode
from infercanary.exporter import collect, limits
from infercanary.exporter.poll import prepared

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def write_for_ever(writer: asyncio.StreamWriter, piece: bytes, pause: float) -> None:
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


def raw(*answer: bytes) -> Handler:
    async def handle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(answer))
        await writer.drain()

    return handle


def whole(body: bytes) -> Handler:
    return raw(OK, b"Content-Length: %d\r\n\r\n" % len(body), body)


async def hang(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"\r\n")
    await write_for_ever(writer, b"[" * 65536, 0)


async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 1000000\r\n\r\n")
    await write_for_ever(writer, b" ", 0.02)


async def endless_headers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    # Many at a time: on a busy machine the limit of their number must come before the time-out.
    await write_for_ever(writer, (b"X-More: " + b"x" * 4000 + b"\r\n") * 50, 0)


async def one_byte_chunks(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    await write_for_ever(writer, b"1\r\n \r\n" * 2_000, 0.001)


async def interim_answers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await write_for_ever(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 500, 0.001)


HOSTILE: dict[str, tuple[Handler, str]] = {
    "hanging": (hang, "timeout"),
    "dripping": (drip, "timeout"),
    "endless": (endless, "too_large"),
    "huge": (whole(b" " * (5 << 20)), "too_large"),
    "one-byte-chunks": (one_byte_chunks, "malformed"),
    "interim-answers": (interim_answers, "http_status"),
    "endless-headers": (endless_headers, "malformed"),
    "closing-at-once": (raw(), "closed_early"),
    "closing-in-the-body": (raw(OK, b"Content-Length: 100\r\n\r\n{"), "closed_early"),
    "understating-its-length": (raw(OK, b"Content-Length: 1\r\n\r\n{}"), "malformed"),
    "redirecting": (
        raw(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
        "http_status",
    ),
    "failing": (raw(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "http_status"),
    "no-http": (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "malformed"),
    "no-json": (whole(b"<html>"), "malformed"),
    "no-report": (whole(b"[]"), "malformed"),
    "wrong-types": (whole(b'{"schema_version": "1"}'), "malformed"),
    "deep": (whole(b'{"x":' + b"[" * 100_000), "malformed"),
    "gzip-bomb": (raw(OK, b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08"), "malformed"),
    "from-the-future": (whole(b'{"schema_version": 2, "all": "new"}'), "schema"),
}


async def test_each_hostile_probe_costs_only_itself(
    exporter: Any, config: Any, eventually: Any, serve: Any, listen: Any, good_probe: Any
) -> None:
    """All at once: the good one stays fresh, the reasons are right, the scrape stays fast."""
    urls = {name: await listen(handler) for name, (handler, _) in HOSTILE.items()}
    urls["good"] = await serve(good_probe.app())
    urls["refusing"] = "http://127.0.0.1:1"
    reasons = {name: reason for name, (_, reason) in HOSTILE.items()} | {"refusing": "unreachable"}
    async with exporter(config(*urls.items())) as run:

        async def all_failed() -> bool:
            failed = await run.labels("infercanary_poll_failures_total")
            return {labels["container"] for labels in failed} >= reasons.keys()

        await eventually(all_failed)
        samples = await run.samples()
        failures = {
            dict(labels)["container"]: dict(labels)["reason"]
            for name, labels in samples
            if name == "infercanary_poll_failures_total"
        }
        # Where other work takes the CPUs, a poll may time out before its answer is taken apart.
        late = {c: reasons[c] for c, reason in failures.items() if reason == "timeout" != reasons[c]}
        assert failures | late == reasons and len(late) <= 6, failures
        up = {
            dict(labels)["container"]: value
            for (name, labels), value in samples.items()
            if name == "infercanary_up"
        }
        assert up == dict.fromkeys(reasons, 0.0) | {"good": 1.0}
        assert {dict(labels)["container"] for name, labels in samples if name.startswith(LATENCY.name)} == {
            "good"
        }
        now = asyncio.get_running_loop().time
        paces, ages, took = [], [], []
        for _ in range(3):  # one of them without a slow moment of the machine
            polls = good_probe.polls
            await asyncio.sleep(1.0)
            paces.append(good_probe.polls - polls)
            ages.append(await run.value("infercanary_report_age_seconds", container="good"))
            started = now()
            await run.get("/metrics")
            took.append(now() - started)
        assert max(paces) >= 7, "the good probe is polled at its own pace"
        assert min(ages) < 0.5 and min(took) < 0.5


async def test_a_poll_that_times_out_as_it_is_stopped_is_stopped(
    exporter: Any, config: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation may be lost in the timeout that it met: such a poll went on, and the exporter never ended."""
    polling = asyncio.Event()

    async def times_out(*_: object) -> bytes:
        polling.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise PollError("timeout", "no whole answer in 30 s") from None
        return b""

    monkeypatch.setattr(collect, "fetch", times_out)

    async def lives() -> None:
        async with exporter(config(("one", "http://127.0.0.1:1"))):
            await polling.wait()

    lived = asyncio.create_task(lives())
    assert (await asyncio.wait([lived], timeout=10))[0] == {lived}


def gauge(name: str, *points: Point, labels: tuple[str, ...] = (), kind: str = "gauge") -> Family:
    return Family(name, kind, "Something.", labels, points or (Point((), 1.0),))  # type: ignore[arg-type]


async def test_bad_families_are_rejected_by_reason_and_good_ones_of_the_same_report_shown(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    good_probe.families = [
        gauge("infercanary_fine"),
        gauge("infercanary_up"),
        gauge("node_load1"),
        gauge("infercanary_bomb", *(Point((str(n),), 1.0) for n in range(6000)), labels=("n",)),
        gauge("infercanary_wide", Point(("x" * 10_000,), 1.0), labels=("n",)),
        gauge("infercanary_mine", Point(("others",), 1.0), labels=("container",)),
        Family("infercanary_histogram", "histogram", "Short.", (), (Point((), HistogramValue((1,), 1.0)),)),
    ]
    async with exporter(config(("one", await serve(good_probe.app())))) as run:
        await eventually(lambda: run.value("infercanary_rejected_total", reason="unsound"))
        rejected = {labels["reason"] for labels in await run.labels("infercanary_rejected_total")}
        assert rejected == {"reserved", "too_many", "unsound"}
        assert await run.value("infercanary_fine") == 1
        assert await run.value("infercanary_up") == 1
        _, text = await run.get()
        assert "others" not in text
        assert "bomb" not in text


async def test_a_name_has_the_kind_of_the_first_probe(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    rival = type(good_probe)()
    rival.families = [gauge("infercanary_disputed_total", kind="counter")]
    async with exporter(
        config(("hostile", await serve(rival.app())), ("honest", await serve(good_probe.app())))
    ) as run:
        await eventually(lambda: run.value("infercanary_disputed_total", container="hostile"))
        good_probe.families = [gauge("infercanary_disputed"), gauge("infercanary_own")]
        await eventually(
            lambda: run.value("infercanary_rejected_total", container="honest", reason="conflict")
        )
        assert await run.value("infercanary_disputed_total", container="hostile") == 1
        assert await run.value("infercanary_own", container="honest") == 1


async def test_data_vanishes_with_the_first_failed_poll_and_comes_back(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    broken = asyncio.Event()
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=503) if broken.is_set() else await good_probe.answer(request)

    app.router.add_get("/report", answer)
    async with exporter(config(("one", await serve(app)))) as run:
        await eventually(lambda: run.value("infercanary_latency_seconds_count"))
        broken.set()
        await eventually(lambda: is_zero(run.value("infercanary_up")))
        assert await run.value("infercanary_latency_seconds_count") is None
        assert await run.value("infercanary_container_info") == 1
        aged = await run.value("infercanary_report_age_seconds")
        broken.clear()
        await eventually(lambda: run.value("infercanary_up"))
        assert await run.value("infercanary_latency_seconds_count") > 0
        assert await run.value("infercanary_report_age_seconds") < aged + 0.5
        assert await run.value("infercanary_poll_failures_total", reason="http_status") >= 1


async def is_zero(value: Awaitable[float | None]) -> bool:
    return await value == 0


async def test_each_run_is_taken_once_and_the_lost_ones_are_counted(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    good_probe.runs = [Run(n, "resnet18", 0.0, 0.0, "ok", (0.01, 0.02)) for n in range(5)]
    good_probe.lost_runs = 100  # before the exporter ever came
    async with exporter(config(("one", await serve(good_probe.app())))) as run:
        await eventually(lambda: run.value("infercanary_runs_collected_total"))
        good_probe.lost_runs = 0
        assert await run.value("infercanary_runs_lost_total") == 0
        good_probe.runs += [Run(n, "resnet18", 0.0, 0.0, "ok", (0.01,)) for n in range(5, 8)]
        await eventually(lambda: equals(run.value("infercanary_runs_collected_total"), 8))
        assert good_probe.cursors[0] == ""
        assert good_probe.cursors[-1].startswith("boot-1:")
        # The probe restarts: its sequence begins again, and its runs are new ones.
        good_probe.boot_id = "boot-2"
        good_probe.runs = [Run(n, "resnet18", 0.0, 0.0, "ok", (0.01,)) for n in range(2)]
        await eventually(lambda: equals(run.value("infercanary_runs_collected_total"), 10))
        # It found runs of a start that no poll saw in its journal, and of one that polls saw.
        good_probe.runs += [
            Run(n, "resnet18", 0.0, 0.0, "ok", (0.01,), boot_id=boot)
            for boot, numbers in (("unseen", range(4)), ("boot-1", range(8, 9)))
            for n in numbers
        ]
        await eventually(lambda: equals(run.value("infercanary_runs_left_out_total"), 4))
        assert await run.value("infercanary_runs_collected_total") == 15


async def equals(value: Awaitable[float | None], expected: float) -> bool:
    return await value == expected


async def test_a_probe_that_repeats_its_runs_is_not_believed(
    exporter: Any, config: Any, eventually: Any, listen: Any, good_probe: Any
) -> None:
    good_probe.runs = [Run(n, "resnet18", 0.0, 0.0, "ok", (0.01,)) for n in range(3)]
    async with exporter(config(("one", await listen(whole(encode(good_probe.report())))))) as run:
        await eventually(lambda: run.value("infercanary_runs_collected_total"))
        await asyncio.sleep(0.5)
        assert await run.value("infercanary_runs_collected_total") == 3


@pytest.mark.parametrize(
    "change", [{"lost_runs": -1}, {"cursor": "c" * 1000}, {"cursor": "a\r\nb"}, {"boot_id": "\x00"}]
)
async def test_a_report_with_a_false_frame_is_no_report(
    exporter: Any, config: Any, eventually: Any, listen: Any, good_probe: Any, change: dict[str, Any]
) -> None:
    body = encode(msgspec.structs.replace(good_probe.report(), **change))
    async with exporter(config(("one", await listen(whole(body))))) as run:
        await eventually(lambda: run.value("infercanary_poll_failures_total", reason="malformed"))
        assert await run.value("infercanary_up") == 0


async def test_a_probe_on_a_unix_socket(
    exporter: Any, config: Any, eventually: Any, good_probe: Any, tmp_path: Path
) -> None:
    runner = web.AppRunner(good_probe.app(), access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "probe.sock")).start()
    probes = [("here", f"unix://{tmp_path}/probe.sock"), ("nowhere", f"unix://{tmp_path}/no.sock")]
    async with exporter(config(*probes)) as run:
        await eventually(lambda: run.value("infercanary_up", container="here"))
        await eventually(
            lambda: run.value("infercanary_poll_failures_total", container="nowhere", reason="unreachable")
        )
    await runner.cleanup()


async def test_hostile_text_arrives_unharmed_in_both_formats(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    nasty = 'a"b\\c{d}%s,=#é\u00a9'
    good_probe.families = [gauge("infercanary_nasty", Point((nasty,), 1.5), labels=("text",))]
    async with exporter(config(("one", await serve(good_probe.app())))) as run:
        await eventually(lambda: run.value("infercanary_nasty"))
        assert await run.value("infercanary_nasty", text=nasty) == 1.5
        status, text = await run.get(Accept="application/openmetrics-text")
        assert status == 200
        families = {family.name: family for family in parse_openmetrics(text)}
        assert families["infercanary_nasty"].samples[0].labels["text"] == nasty
        buckets = [s for s in families[LATENCY.name].samples if s.name.endswith("_bucket")]
        assert len(buckets) == len(LADDER) + 1
        assert families["infercanary_runs_collected"].type == "counter"
        assert families["process_cpu_seconds"].type == "counter"


async def test_every_series_of_the_exporter_is_reserved(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any
) -> None:
    """A metric that is added and not declared in METRICS could be forged by a probe."""
    good_probe.families = [gauge("infercanary_fine")]
    probes = [("one", await serve(good_probe.app())), ("refusing", "http://127.0.0.1:1")]
    async with exporter(config(*probes)) as run:
        await eventually(lambda: run.value("infercanary_poll_failures_total"))
        await eventually(lambda: run.value("infercanary_fine"))
        _, text = await run.get()
        shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE infercanary_")}
        good_probe.families = [
            gauge(name, kind="counter" if name.endswith("_total") else "gauge")
            for name in shown - {LATENCY.name, "infercanary_phase_seconds", "infercanary_fine"}
        ]
        await eventually(
            lambda: at_least(
                run.value("infercanary_rejected_total", reason="reserved"), len(good_probe.families)
            )
        )
        await asyncio.sleep(0.3)
        assert {labels["reason"] for labels in await run.labels("infercanary_rejected_total")} == {"reserved"}


async def at_least(value: Awaitable[float | None], expected: float) -> bool:
    return (await value or 0) >= expected


async def test_a_probe_that_costs_much_is_asked_more_rarely(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hundredth of a CPU is a probe's: here each report takes 0.2 s of it, so it is asked after ten."""

    def costly(*arguments: Any) -> Any:
        return prepared(*arguments)._replace(cpu_seconds=0.2)

    monkeypatch.setattr(collect, "prepared", costly)
    async with exporter(config(("costly", await serve(good_probe.app())))) as run:
        await eventually(lambda: run.value("infercanary_budget_exceeded_total", budget="cpu_seconds"))
        await asyncio.sleep(0.5)
        assert good_probe.polls == 1


async def test_an_answer_that_is_more_than_its_share_of_what_comes_in_is_cut(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits.Share, "grant", lambda _self, _key, wanted: min(wanted, 100))
    async with exporter(config(("one", await serve(good_probe.app())))) as run:
        await eventually(lambda: run.value("infercanary_poll_failures_total", reason="too_large"))
        assert await run.value("infercanary_budget_exceeded_total", budget="held_bytes")
        monkeypatch.undo()
        await eventually(lambda: run.value("infercanary_up", container="one"))
