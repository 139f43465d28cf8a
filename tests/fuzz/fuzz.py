"""Fuzzes the parsers of untrusted input: ``python fuzz.py --seconds 60 [--only report]``.

Each target reads one input, and may refuse the input only with the expected exception; any other exception is a
finding. Inputs are seeds from ``corpus/TARGET`` changed at random places, or bytes drawn by hypothesis. A finding is
shrunk by hypothesis and written to ``corpus/TARGET``. Later runs and ``make test`` try it first.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import logging
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stores import generation, samples

from infercanary.client.accept import read
from infercanary.client.fetch import PollError, fetch
from infercanary.command.settings import UsageError
from infercanary.compare import journal
from infercanary.exporter import expose, web
from infercanary.exporter.config import check
from infercanary.store.base import StoreError
from infercanary.store.store import open_store

CORPUS = Path(__file__).parent / "corpus"
_INPUTS = 200


def report(data):
    """Target: a probe's report."""
    with suppress(PollError):
        for family in read(data)[0].families:
            expose.write(family, {"service": "s", "container": "c"})


def journals(data):
    """Target: a probe's journal, as `compare` reads it."""
    with suppress(UsageError):
        journal.is_journal(data)
        journal.recording(["journal"], journal.entries("journal", data, []), [])


def exporter_settings(data):
    """Target: exporter.yaml."""
    _settings(data, check)


def web_config(data):
    """Target: web.yml."""
    _settings(data, web.Secured)


def _settings(data, load):
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file, suppress(UsageError):
        Path(file.name).write_bytes(data)
        load(Path(file.name))


def store(data):
    """Target: the store's file, which must be read, or rejected as corrupt."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "judge.sqlite"
        path.write_bytes(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        with suppress(StoreError), closing(open_store(path)) as found:
            for service, canary in found.canaries():
                found.generations(service, canary, most_bytes=10_000)
                found.taken(service, canary)
                found.newest_starts(service)
                found.history(service, canary, "verdict")
            found.last_runs("")
            found.take(generation(), samples(20, 60))
            found.thin(2e9)


def http_answer(data):
    """Target: a probe's HTTP answer."""

    async def answer():
        async def handle(reader, writer):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(data)
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with suppress(PollError):
                await fetch(url, "", 5.0)

    asyncio.run(answer())


TARGETS = {
    "report": report,
    "journal": journals,
    "settings": exporter_settings,
    "web_config": web_config,
    "http": http_answer,
    "store": store,
}


def seeds(name):
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@st.composite
def changed(draw: st.DrawFn, name: str) -> bytes:
    data = bytearray(draw(st.sampled_from(seeds(name))))
    if data.startswith(b"\x1f\x8b"):
        data = bytearray(gzip.decompress(bytes(data)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 64))
        piece = draw(
            st.one_of(
                st.binary(max_size=16),
                st.sampled_from(
                    [b"-1", b"1e309", b"NaN", b"null", b"[]", b"{}", b'""', b"\xff", b"\0" * 8, b"9" * 40]
                ),
                st.just(bytes(data[at : at + length])),
            )
        )
        data[at : at + draw(st.sampled_from([0, len(piece), length]))] = piece
    return bytes(data)


def fuzz(name, seconds):
    """Fuzz one target.

    Args:
        name: Name of the target.
        seconds: Wall-clock time.

    Returns:
        Number of inputs, and the exception of a finding, whose input is then in the corpus.
    """
    target = TARGETS[name]
    tried = 0
    last = b""

    @settings(max_examples=_INPUTS, deadline=None, database=None, suppress_health_check=[*HealthCheck],
              phases=[Phase.generate, Phase.shrink])  # fmt: skip
    @given(st.one_of(changed(name), changed(name), changed(name), st.binary(max_size=512)))
    def one(data):
        nonlocal tried, last
        tried += 1
        last = data
        target(data)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            one()
        except Exception as error:
            (CORPUS / name / f"find-{hashlib.sha256(last).hexdigest()[:12]}").write_bytes(last)
            return tried, error
    return tried, None


def main():
    """Fuzz all targets; return 1 after a finding, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--only", choices=[*TARGETS], help="this one alone")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    broken = 0
    for name in [arguments.only] if arguments.only else TARGETS:
        tried, error = fuzz(name, arguments.seconds)
        ended = f"broken: {error!r}" if error else "none broke it"
        print(f"{name}: {tried:,} inputs in {arguments.seconds:g} s, {ended}", flush=True)
        broken += error is not None
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
