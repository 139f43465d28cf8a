"""Base class of targets that send requests to a server."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeVar

import msgspec

from infercanary.command.settings import convert
from infercanary.probe.targets import Reading, Reason, Target, Unsized
from infercanary.probe.targets.wire.connection import Response
from infercanary.probe.targets.wire.server import Server, ServerOptions
from infercanary.probe.targets.wire.timing_headers import header_readings
from infercanary.probe.timing import HostClock, Phase, Timing

T = TypeVar("T")
S = TypeVar("S", bound="ServerTarget")

REASONS: tuple[Reason, ...] = (
    "wrong_shape", "unreachable", "not_ready", "error_answer", "incomplete", "malformed", "too_large", "rate_limited",
)  # fmt: skip
"""Failure reasons that a target for a server may give."""

_MAX_ANSWERS = 64  # maximum number of answers whose headers are kept; a sweep's targets never read them


class ByteClock(HostClock):
    """Ends a repeat at the last received byte, because parsing is not part of the server's time."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`infercanary.probe.timing.Clock`."""
        begin = perf_counter()
        timing, result = super().measure(run)
        received_at = self._server.received_at
        parsing = max(0.0, begin + timing.wall - received_at) if received_at > begin else 0.0
        rest, phases = parsing, timing.phases
        for name in reversed(phases):
            cut = min(rest, phases[name])
            phases[name] -= cut
            rest -= cut
        return Timing(timing.wall - parsing, phases), result


class ServerTarget(Target):
    """A target that asks a server: options, failure reasons, connection, and times from answers' headers.

    Phases: ``connect``, ``send``, ``wait``, ``receive``.
    """

    options_type: type[ServerOptions] = ServerOptions
    reasons = REASONS
    is_sweepable = True

    def __init__(self, options: ServerOptions) -> None:
        """Keep the options and the server, but send nothing yet.

        Raises:
            UsageError: An option is invalid.
        """
        # check the options, because options made in code are unchecked
        self._options = convert(msgspec.to_builtins(options), type(options), "")
        self._server = Server(self._options)
        self.clock = ByteClock(self._server)
        self._method, self._path = "POST", self._server.path
        self._body: bytes | bytearray = b""
        self._headers = {"Content-Type": "application/json"}
        self._request = b""
        self._answers: deque[Mapping[str, str]] = deque(maxlen=_MAX_ANSWERS)

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the server."""
        return self._server.host, self._server.port

    def copy_with_batch(self: S, batch: int) -> S:
        """Make a target for a sweep: the same request on a separate connection."""
        if batch != 1:
            raise Unsized("the size of a request is fixed; sweep `concurrency` without `batches`")
        other = copy.copy(self)
        other._server = Server(self._options)
        other._server.open()
        other.clock = ByteClock(other._server)
        return other

    def open(self) -> None:
        """Wait until the server is ready.

        Raises:
            UsageError: A file cannot be read.
            Failure: The server cannot be reached, or is not ready in time.
        """
        self._server.open()
        self._server.wait_until_ready(self._require_ready)
        self._make_request()

    def prepare(self) -> None:
        """Read header files again, and reconnect if the server closed the connection. Called before each run."""
        self._server.refresh()
        self._make_request()
        self._answers = deque(maxlen=_MAX_ANSWERS)
        if self._options.keep_alive:
            self._server.connect()

    def readings(self) -> list[Reading]:
        """Return the server's own times if its answers' headers report them."""
        return header_readings(self._answers)

    def close(self) -> None:
        self._server.close()

    def _require_ready(self) -> None:
        self._server.connect()

    def _make_request(self) -> None:
        self._request = self._server.request(self._method, self._path, self._body, self._headers)

    def _ask(self, phase: Phase, status: int, what: str) -> tuple[Response, bytes]:
        """Make the request once. Raise an error for an answer with another status."""
        answer = self._server.ask(self._method, self._request, phase)
        with phase("receive"):
            body = self._server.read()
        self._server.require(what, answer, body, status)
        self._answers.append(answer.headers)
        return answer, body
