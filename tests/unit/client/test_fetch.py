"""What is no report is said to be none, whatever it is, and takes no more memory than one."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress

import pytest

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
