"""A server, and the options that every target for one takes: where it is, what each request carries, its limits."""

from __future__ import annotations

import copy
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import msgspec

from infercanary.command.settings import UsageError, convert
from infercanary.contract.text import printable
from infercanary.probe.deadline import one_line
from infercanary.probe.targets import Failure, Reason, Target, Unsized
from infercanary.probe.targets.wire.connection import Connection, Response
from infercanary.probe.timing import HostClock

T = TypeVar("T")
S = TypeVar("S", bound="ServerTarget")

REASONS: tuple[Reason, ...] = (
    "wrong_shape", "unreachable", "not_ready", "error_answer", "incomplete", "malformed", "too_large", "rate_limited",
)  # fmt: skip
"""The reasons that a target for a server raises itself."""

_MAX_SECRET_BYTES = 65536
_OURS = ("connection", "content-length", "transfer-encoding", "inference-header-content-length")
_READY_PAUSES = 0.1, 2.0
_LONGEST_RETRY_SECONDS = 3600.0  # a server may ask for years
_SECRETS = re.compile(r"auth|cookie|key|secret|token", re.IGNORECASE)
_PRIVATE = re.compile(r"key|secret|passw|credential|authorization|(access|auth|bearer)[_-]?token", re.I)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # no JSON begins so
_LEAST_HIDDEN = 6  # a shorter value would hide words that are no secret


class HeaderFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A header's value that is in a file, such as a mounted secret; ``prefix`` comes before it (``"Bearer "``)."""

    file: str
    prefix: str = ""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that every target for a server takes; each such target adds its own in a struct derived from this."""

    url: str
    """``http://`` or ``https://``, with a path where the server is behind one."""
    headers: Mapping[str, Any] | None = None
    """Name → value, or ``{file: PATH, prefix: TEXT}``. Files are read again before each run, for tokens that are
    rotated; what was in them is in no message, in no log and in no report."""
    timeout_seconds: float = 10.0
    """For one exchange, from connecting to the last byte."""
    ready_seconds: float = 60.0
    """How long opening waits for a server that is not there, or not ready."""
    keep_alive: bool = True
    """Whether the connection is kept between requests; if not, each repeat makes its own."""
    ca_file: str | None = None
    """Certificates (PEM) to trust instead of the system's."""
    max_response_bytes: int = 64 << 20
    """A larger answer is a failure (``too_large``)."""


class Server:
    """A server, and the one connection to it."""

    def __init__(self, options: ServerOptions) -> None:
        """Check the options; connect to nothing yet.

        Args:
            options: As in the settings.

        Raises:
            UsageError: An option cannot be meant so.
        """
        self.host, self.port, self._is_tls, self.path = _parsed(options.url)
        given = convert({} if options.headers is None else options.headers, dict[str, Any], "headers")
        self._headers = {name: _header(name, value) for name, value in given.items()}
        self._seconds = seconds("timeout_seconds", options.timeout_seconds)
        self._ready_seconds = seconds("ready_seconds", options.ready_seconds, least=0.0)
        if not isinstance(options.keep_alive, bool):
            raise UsageError(f"keep_alive: `{options.keep_alive}` is neither true nor false")
        self._keep_alive = options.keep_alive
        self._ca_file = options.ca_file
        if self._ca_file is not None and not (isinstance(self._ca_file, str) and self._is_tls):
            raise UsageError("ca_file: name a file, and an https:// address in url")
        self._most_bytes = whole("max_response_bytes", options.max_response_bytes, least=1024)
        self._sent: dict[str, str] = {}
        self._hidden: list[str] = []
        self._connection: Connection | None = None

    @property
    def base(self) -> str:
        """The path that others are put below.

        Raises:
            UsageError: The address has a query.
        """
        if "?" in self.path:
            raise UsageError("url: it has a query (`?…`), and other addresses are made of it; leave that out")
        return self.path.rstrip("/")

    def open(self) -> None:
        """Read the files; connect to nothing yet.

        Raises:
            UsageError: A file cannot be read, or does not hold what it should.
        """
        tls = None
        if self._is_tls:
            try:
                tls = ssl.create_default_context(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"ca_file: `{self._ca_file}` cannot be read ({error.strerror or error}); give certificates as PEM"
                ) from None
        self._connection = Connection(
            self.host, self.port, tls, self._seconds, self._most_bytes, self._keep_alive
        )
        self.refresh()

    def another(self, batch: int) -> Server:
        """Open the same server with a connection of its own, for a sweep.

        Args:
            batch: Samples in a request.

        Returns:
            A server that is open; it is to be closed by itself.

        Raises:
            Unsized: More than one sample is asked for: the request's size is fixed.
        """
        if batch != 1:
            raise Unsized("a request has the size that it has; sweep `concurrency`, and leave `batches` out")
        other = copy.copy(self)
        other.open()
        return other

    def refresh(self) -> None:
        """Read again the headers that are in files.

        Raises:
            UsageError: A file cannot be read, or does not hold one line.
        """
        sent = {}
        hidden = set()
        for name, value in self._headers.items():
            if isinstance(value, HeaderFile):
                secret = _secret(name, value.file)
                sent[name] = value.prefix + secret
                hidden.add(secret)
            else:
                sent[name] = value
                if _SECRETS.search(name):
                    hidden.update((value, value.rpartition(" ")[2]))
        self._sent = sent
        self._hidden = sorted((text for text in hidden if len(text) >= _LEAST_HIDDEN), key=len, reverse=True)

    @property
    def connection(self) -> Connection:
        """The one connection, made when it is first used; :meth:`open` comes before."""
        assert self._connection is not None, "open() comes first"
        return self._connection

    def until_ready(self, check: Callable[[], None]) -> None:
        """Call ``check`` until it raises nothing, for ``ready_seconds`` at most.

        Args:
            check: Asks the server, and raises a failure if it is not ready.

        Raises:
            Failure: The last one of ``check``. Only ``unreachable`` and ``not_ready`` are waited for.
        """
        deadline = time.monotonic() + self._ready_seconds
        pause, longest = _READY_PAUSES
        while True:
            try:
                check()
                return
            except Failure as failure:
                wait = max(pause, failure.retry_after or 0.0)
                if failure.reason not in ("unreachable", "not_ready") or time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait)
            pause = min(longest, 2 * pause)

    def request(
        self, method: str, path: str, body: bytes | bytearray = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Make a request.

        Args:
            method: The HTTP method.
            path: With its query.
            body: The request's.
            headers: They give way to the user's.

        Returns:
            All of its bytes.
        """
        own = {name.lower(): (name, value) for name, value in (headers or {}).items()}
        own |= {name.lower(): (name, value) for name, value in self._sent.items()}
        own.setdefault("host", ("Host", self._authority()))
        own.setdefault("user-agent", ("User-Agent", "infercanary"))
        own.setdefault("accept-encoding", ("Accept-Encoding", "identity"))
        if not self._keep_alive:
            own["connection"] = ("Connection", "close")
        if body or method in ("POST", "PUT", "PATCH"):
            own["content-length"] = ("Content-Length", str(len(body)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in own.values()), "", ""]
        return "\r\n".join(lines).encode("latin-1") + body

    def get(self, path: str) -> tuple[Response, bytes]:
        """Make a GET request.

        Args:
            path: With its query.

        Returns:
            The answer, and its body.

        Raises:
            Failure: There is no whole answer.
        """
        answer = self.connection.ask("GET", self.request("GET", path))
        return answer, answer.read()

    def refuse(self, what: str, answer: Response, body: bytes, reason: Reason = "error_answer") -> NoReturn:
        """Raise the failure that an answer is.

        Args:
            what: What was asked, and what is wrong.
            answer: Its status is in the message.
            body: Its first words are, too.
            reason: The failure's, unless the answer says that it is about the rate of requests (``rate_limited``).

        Raises:
            Failure: Always.
        """
        wait = retry_after(answer.headers)
        if answer.status == 429 or (answer.status == 503 and wait is not None and reason != "not_ready"):
            reason = "rate_limited"
        said = f"(compressed, {answer.encoding})" if answer.encoding else self.excerpt(body, 200)
        text = f"{what}: {answer.status} {answer.phrase or _phrase(answer.status)}"
        if 300 <= answer.status < 400:
            where = printable(self.hide(str(answer.headers.get("Location", "nowhere"))), 200, " ")
            raise Failure(
                reason, f"{text} to {where}; redirects are not followed: put the right address in url"
            )
        raise Failure(reason, f"{text}: {said}" if said else text, wait)

    def require_plain(self, answer: Response) -> None:
        """Refuse a compressed answer, whose body cannot be read.

        Args:
            answer: Its head.

        Raises:
            Failure: It is compressed (``malformed``).
        """
        if answer.encoding:
            raise _compressed(printable(answer.encoding, 40, " "))

    def hide(self, text: str) -> str:
        """Return the text without the headers' secrets: a server may repeat a token in its error.

        Args:
            text: Anything that may be shown or logged.

        Returns:
            The text, with ``***`` in the place of each secret.
        """
        for hidden in self._hidden:
            text = text.replace(hidden, "***")
        return text

    def excerpt(self, body: bytes, most: int) -> str:
        """Return the first characters of a body; secrets are hidden before it is cut, or halves would remain.

        Args:
            body: Of an answer, as it came.
            most: Characters.

        Returns:
            One line of printable text.
        """
        return printable(
            self.hide(body[: most + _MAX_SECRET_BYTES].decode("utf-8", "replace")).strip(), most, " "
        )

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._sent, self._hidden = {}, []

    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self._is_tls else 80) else f"{host}:{self.port}"


class ServerTarget(Target):
    """What every target for a server has: its options, why its runs fail, and a connection for each part of a sweep."""

    options_type: type[ServerOptions] = ServerOptions
    reasons = REASONS
    is_sweepable = True

    def __init__(self, options: ServerOptions) -> None:
        """Check the options that all of them have.

        Args:
            options: As in the settings.

        Raises:
            UsageError: An option cannot be meant so.
        """
        self.clock = HostClock()
        self._server = Server(options)

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the server."""
        return self._server.host, self._server.port

    def copy_with_batch(self: S, batch: int) -> S:
        """Make a target with the same request on a connection of its own, for a sweep."""
        other = copy.copy(self)
        other._server = self._server.another(batch)
        return other


def without_secrets(value: Any) -> Any:
    """Return a request's body without what may be a secret by its key: nothing of it may be found by trying.

    Args:
        value: Of JSON.

    Returns:
        The same at any depth, without those keys.
    """
    if isinstance(value, Mapping):
        return {key: without_secrets(each) for key, each in value.items() if not _PRIVATE.search(str(key))}
    if isinstance(value, (list, tuple)):
        return [without_secrets(each) for each in value]
    return value


def document(body: bytes, kind: type[T], what: str) -> T:
    """Decode JSON; NaN and infinity pass, since the output check finds them.

    Args:
        body: The JSON.
        kind: The type to decode to.
        what: Names the document in the message.

    Returns:
        A value of ``kind``.

    Raises:
        Failure: It is compressed, no JSON, or of another type (``malformed``).
    """
    for magic, encoding in _COMPRESSED.items():
        if body.startswith(magic):
            raise _compressed(encoding)
    try:
        return converted(json.loads(body), kind, what)
    except (ValueError, RecursionError) as error:
        raise Failure("malformed", f"{what} is not what the protocol has there: {one_line(error)}") from None


def converted(value: Any, kind: type[T], what: str) -> T:
    """Convert decoded JSON.

    Args:
        value: What ``json.loads`` returned.
        kind: The type to convert to.
        what: Names the document in the message.

    Returns:
        A value of ``kind``.

    Raises:
        Failure: It is of another type (``malformed``).
    """
    try:
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError) as error:  # msgspec's own is a ValueError
        raise Failure("malformed", f"{what} is not what the protocol has there: {one_line(error)}") from None


def retry_after(headers: Message) -> float | None:
    """Return how long a server asks to be left alone (RFC 9110, section 10.2.3).

    Args:
        headers: Of its answer.

    Returns:
        Seconds, from 0 to an hour; None if it does not say, or not in a form that is known.
    """
    value = str(headers.get("Retry-After", "")).strip()
    if re.fullmatch(r"[0-9]{1,40}(\.[0-9]{0,9})?", value):
        return min(float(value), _LONGEST_RETRY_SECONDS)
    try:
        until = parsedate_to_datetime(value).timestamp()
        # By the server's own clock, if it has one: this one may be wrong.
        sent = parsedate_to_datetime(headers["Date"]).timestamp() if "Date" in headers else time.time()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    return max(0.0, min(until - sent, _LONGEST_RETRY_SECONDS))


def seconds(key: str, value: float, least: float = 0.001) -> float:
    """Check a time in seconds.

    Args:
        key: The option's name, for the message.
        value: As in the settings.
        least: Seconds; the smallest value that can be meant.

    Returns:
        The same, as a float.

    Raises:
        UsageError: It is none, or outside of ``least`` to a day.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 86400:
        raise UsageError(f"{key}: `{value}` is not a time; give seconds, {least:g} to 86400")
    return float(value)


def whole(key: str, value: int, least: int) -> int:
    """Check a whole number.

    Args:
        key: The option's name, for the message.
        value: As in the settings.
        least: The smallest value that can be meant.

    Returns:
        The same number.

    Raises:
        UsageError: It is none, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
        raise UsageError(f"{key}: `{value}` is not a whole number from {least} on")
    return value


def _parsed(url: str) -> tuple[str, int, bool, str]:
    """Parse an address into host, port, whether it is TLS, and the path with its query."""
    fix = "give http://HOST:PORT or https://HOST:PORT, maybe with a path"
    shown = "it" if "@" in str(url) else f"`{url}`"  # what is before an @ may be a password
    if not isinstance(url, str) or not re.fullmatch(r"[\x21-\x7e]+", url):
        raise UsageError(f"url: {shown} is no address in ASCII; {fix}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"url: {shown} is no address; {fix}") from None
    if "@" in parts.netloc:  # not repeated: it may hold a password
        raise UsageError("url: it holds a user or a password; put that into headers, from a file")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.fragment:
        raise UsageError(f"url: {shown} is no address of a server; {fix}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_tls = parts.scheme == "https"
    return parts.hostname, port or (443 if is_tls else 80), is_tls, path


def _header(name: str, given: Any) -> str | HeaderFile:
    """Check a header; return its value, or the file that holds it."""
    if not re.fullmatch(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name):
        raise UsageError(f"headers: `{name}` is no name of a header; letters, digits and `-` make one")
    if name.lower() in _OURS:
        raise UsageError(f"headers.{name}: it follows from the request itself; leave it out")
    if not isinstance(given, (str, Mapping)):
        raise UsageError(f"headers.{name}: give text (in quotes), or a mapping with `file`")
    value = given if isinstance(given, str) else convert(given, HeaderFile, f"headers.{name}")
    if not _is_value(value if isinstance(value, str) else value.prefix):
        raise UsageError(f"headers.{name}: it holds a character that no header can; use Latin letters")
    return value


def _is_value(text: str) -> bool:
    return re.fullmatch(r"[\x20-\x7e\x80-\xff]*", text) is not None


def _secret(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MAX_SECRET_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise UsageError(
            f"headers.{name}: `{path}` cannot be read ({why}); check the path and its permissions"
        ) from None
    text = found.decode("latin-1").strip()
    if not text or len(found) > _MAX_SECRET_BYTES or not _is_value(text):
        raise UsageError(f"headers.{name}: `{path}` does not hold one line with a value; write it there")
    return text


def _compressed(encoding: str) -> Failure:
    return Failure(
        "malformed",
        f"the answer is compressed ({encoding}), which is not read here: turn that off in the server or the "
        "proxy before it (by default requests ask for `Accept-Encoding: identity`)",
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
