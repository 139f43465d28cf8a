"""What is no report is said to be none, whatever it is, and takes no more memory than one."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from contextlib import suppress

import pytest
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler

from infercanary.client import wire
from infercanary.client.fetch import PollError, fetch, open_session, read
from infercanary.client.limits import Limits
from infercanary.contract.report import Report, Run, encode

WHOLE = encode(
    Report(1, "boot", 1.0, "c", 0, (), {"torch": "2.13"}, (Run(1, "resnet18", 1.0, 1.0, "ok", (0.1,)),))
)


@pytest.mark.parametrize("text", [b"resnet18", b"torch", b"2.13"])
def test_a_report_with_a_text_that_is_not_utf_8(text: bytes) -> None:
    assert text in WHOLE
    with pytest.raises(PollError, match="not a report: a text that is not UTF-8") as raised:
        read(WHOLE.replace(text, text[:-1] + b"\xff"), Limits())
    assert raised.value.reason == "malformed"


def test_a_report_that_is_nested_for_ever() -> None:
    with pytest.raises(PollError, match="nested too deeply"):
        read(WHOLE[:-1] + b',"x":' + b"[" * 100_000, Limits())


LINES = b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8_000) for n in range(127))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n" + LINES, id="a head of 1 MB"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 3_000, id="3,000 answers"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"
            + b" " * 9_000
            + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 3_000,
            id="3,000 answers after one",
        ),
    ],
)
async def test_what_http_says_beside_a_report_takes_little_memory(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for start in range(0, len(answer), 4_096):
                writer.write(answer[start : start + 4_096])
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_session(url := f"http://127.0.0.1:{port}", 4 << 20) as session:
            tracemalloc.start()
            try:
                with pytest.raises(PollError):
                    read(await fetch(session, url, "", 10.0, 4 << 20), Limits())
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert most < 600 << 10


ONE_BYTE_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000


async def test_answers_of_many_probes_leave_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each piece takes a millisecond: what is done of all polls between two looks of another."""
    pieces, chunks, most = 0, 0, 0

    def thread_time() -> float:
        return pieces / 1_000

    parse, take = ResponseHandler.data_received, StreamReader._read_nowait_chunk

    def parsed(self: ResponseHandler, data: bytes) -> None:
        nonlocal pieces
        pieces += 1
        parse(self, data)

    def taken(self: StreamReader, n: int) -> bytes:
        nonlocal chunks
        chunks += 1
        return take(self, n)

    monkeypatch.setattr(time, "thread_time", thread_time)
    monkeypatch.setattr(ResponseHandler, "data_received", parsed)
    monkeypatch.setattr(StreamReader, "_read_nowait_chunk", taken)
    answers = {
        "good": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE),
        "odd": ONE_BYTE_CHUNKS,
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            writer.write(answers["good" if b"since=good" in asked else "odd"])
            await writer.drain()
        writer.close()

    async def look() -> None:
        nonlocal most
        while True:
            before = pieces
            await asyncio.sleep(0)
            most = max(most, pieces - before)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        looking, turns = asyncio.create_task(look()), wire.Turns()

        async def poll(cursor: str) -> bytes:
            async with open_session(url, 4 << 20, wire.Meter(turns)) as session:
                return await fetch(session, url, cursor, 60.0, 4 << 20)

        *odd, good = await asyncio.gather(*(poll("") for _ in range(8)), poll("good"), return_exceptions=True)
        looking.cancel()
    assert good == WHOLE
    assert [getattr(error, "reason", error) for error in odd] == ["too_costly"] * 8
    assert pieces > 8 * 50, "each was taken apart until it cost too much"
    assert most <= 7, "of a turn, and its reading goes on where another one begins"
    assert chunks <= 2 * pieces, "what came is read as a whole, not byte by byte"
