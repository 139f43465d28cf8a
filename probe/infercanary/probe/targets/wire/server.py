"""A server that targets send requests to: its address, headers of each request, and limits."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError
from infercanary.contract.text import printable
from infercanary.probe.deadline import one_line
from infercanary.probe.targets import Failure, Reason
from infercanary.probe.targets.wire.connection import Connection, Response, explain, untimed

T = TypeVar("T")

_MAX_SECRET_BYTES = 65536
_OURS = ("connection", "content-length", "transfer-encoding", "inference-header-content-length")
_READY_PAUSE_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 3600.0  # longest pause that a server can request, because some servers ask for years
_SECRETS = re.compile(r"auth|cookie|key|secret|token", re.IGNORECASE)
_PRIVATE = re.compile(r"key|secret|passw|credential|authorization|(access|auth|bearer)[_-]?token", re.I)
# minimum length of a hidden secret, because hiding shorter values would also hide common words
_LEAST_HIDDEN = 6


Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Timeout: TypeAlias = Annotated[float, Meta(ge=0.001, le=86400)]


class HeaderFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header value from a file, such as a mounted secret; ``prefix`` is put before the value (``"Bearer "``)."""

    file: str
    prefix: str = ""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every target for a server; each of these targets adds options in a derived struct."""

    url: str
    """``http://`` or ``https://``, with a path if the server needs it."""
    headers: dict[str, str | HeaderFile] = {}
    """Header name → value. Files are read again before each run, because tokens are rotated. No message, log or
    report contains their content.
    """
    timeout_seconds: Timeout = 10.0
    """Time limit of one exchange, from connecting to the last byte."""
    ready_seconds: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """Longest wait, at the opening, for a server that is unreachable or not ready."""
    keep_alive: bool = True
    """True to keep the connection between requests; if False, each repeat connects anew."""
    ca_file: str | None = None
    """File of certificates (PEM) to trust instead of the system's certificates."""
    max_response_bytes: Annotated[int, Meta(ge=1024, lt=2**62)] = 64 << 20
    """Size limit of an answer; a larger answer is a failure (``too_large``)."""


class Server(Connection):
    """A connection to a server, with the headers of each request. It knows the secrets that no message may repeat."""

    def __init__(self, options: ServerOptions) -> None:
        """Check the options, but do not connect yet.

        Raises:
            UsageError: An option is invalid.
        """
        host, port, self._is_tls, self.path = _parse_url(options.url)
        super().__init__(host, port, options.timeout_seconds, options.max_response_bytes, options.keep_alive)
        for name, value in options.headers.items():
            _check_header(name, value.prefix if isinstance(value, HeaderFile) else value)
        if options.ca_file is not None and not self._is_tls:
            raise UsageError("ca_file: only for an https:// address; change url, or remove ca_file")
        self._options = options
        self._sent: dict[str, str] = {}
        self._hidden: list[str] = []

    @property
    def base(self) -> str:
        """Path of the address. Other paths are appended to this path.

        Raises:
            UsageError: The address has a query.
        """
        if "?" in self.path:
            raise UsageError("url: remove the query (`?…`), because paths are appended to this address")
        return self.path.rstrip("/")

    def open(self) -> None:
        """Read the files, but do not connect yet.

        Raises:
            UsageError: A file cannot be read, or has the wrong content.
        """
        if self._is_tls:
            ca_file = self._options.ca_file
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"ca_file: `{ca_file}` cannot be read ({explain(error)}); give certificates as PEM"
                ) from None
        self.refresh()

    def refresh(self) -> None:
        """Read the header files again.

        Raises:
            UsageError: A file cannot be read, or does not contain one line.
        """
        self._sent = {}
        hidden = set()
        for name, value in self._options.headers.items():
            if isinstance(value, HeaderFile):
                secret = _read_secret(name, value.file)
                hidden.add(secret)
                value = value.prefix + secret
            elif _SECRETS.search(name):
                hidden |= {value, value.rpartition(" ")[2]}
            self._sent[name] = value
        self._hidden = sorted((text for text in hidden if len(text) >= _LEAST_HIDDEN), key=len, reverse=True)

    def wait_until_ready(self, check: Callable[[], None]) -> None:
        """Call ``check`` until it succeeds, for at most ``ready_seconds``.

        Raises:
            Failure: The last failure of ``check``. Only ``unreachable`` and ``not_ready`` lead to another call.
        """
        deadline = time.monotonic() + self._options.ready_seconds
        while True:
            try:
                return check()
            except Failure as failure:
                wait = max(_READY_PAUSE_SECONDS, failure.retry_after or 0.0)
                if failure.reason not in ("unreachable", "not_ready") or time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait)

    def request(
        self, method: str, path: str, body: bytes | bytearray = b"", headers: Mapping[str, str] = {}
    ) -> bytes:
        """Return the bytes of a request. The user's headers override ``headers``."""
        # proxies expect no port number if the port is the default
        host = self._address.removesuffix(":443" if self._is_tls else ":80")
        sent = {"Host": host, "User-Agent": "infercanary", "Accept-Encoding": "identity"}
        if not self._keep_alive:
            sent["Connection"] = "close"
        if body or method in ("POST", "PUT", "PATCH"):
            sent["Content-Length"] = str(len(body))
        sent |= headers
        chosen = {name.lower(): f"{name}: {value}" for name, value in [*sent.items(), *self._sent.items()]}
        lines = [f"{method} {path} HTTP/1.1", *chosen.values(), "", ""]
        return "\r\n".join(lines).encode("latin-1") + body

    def get(self, path: str) -> tuple[Response, bytes]:
        """Make a GET request, and return the answer with its body."""
        answer = self.ask("GET", self.request("GET", path), untimed)
        return answer, self.read()

    def get_document(self, path: str, kind: type[T], what: str) -> T:
        """Return the JSON at a path. If the server lacks this optional path, return an empty document."""
        answer, body = self.get(path)
        if answer.status in (404, 405, 501):
            return kind()
        self.require(what, answer, body)
        return document(body, kind, what)

    def refuse(self, what: str, answer: Response, body: bytes, reason: Reason = "error_answer") -> NoReturn:
        """Raise the failure that an answer means.

        Args:
            what: Description of the request and of the problem.
            answer: Answer whose status is put into the message.
            body: Body of the answer; the message quotes its first words.
            reason: Reason of the failure, replaced by ``rate_limited`` if the answer reports a rate limit.
        """
        wait = retry_after(answer.headers)
        if answer.status == 429 or (answer.status == 503 and wait is not None and reason != "not_ready"):
            reason = "rate_limited"
        text = f"{what}: {answer.status} {answer.phrase}"
        # A redirect is not followed, because url must be the final address.
        said = self.excerpt(answer.headers.get("location", "").encode() or body, 200)
        raise Failure(reason, f"{text}: {said}" if said else text, wait)

    def require(self, what: str, answer: Response, body: bytes, status: int = 200) -> None:
        """Raise an error for an answer with another status, or for a compressed answer, which the probe cannot read."""
        if answer.status != status:
            self.refuse(what, answer, body)
        if answer.encoding:
            raise Failure(
                "malformed",
                f"the answer is compressed ({printable(answer.encoding, 40, ' ')}), which the probe does not read; "
                "turn compression off in the server or its proxy (by default, requests ask for "
                "`Accept-Encoding: identity`)",
            )

    def excerpt(self, body: bytes, size: int) -> str:
        """Return the first characters of a body as one line. Each secret of the headers becomes ``***``.

        Secrets are replaced before the text is cut, because otherwise half of a secret could remain.
        """
        text = body[: size + _MAX_SECRET_BYTES].decode("utf-8", "replace")
        for hidden in self._hidden:
            text = text.replace(hidden, "***")
        return printable(text.strip(), size, " ")


def without_secrets(value: Any) -> Any:
    """Return decoded JSON without the values whose keys suggest a secret, at any depth.

    The values are removed because a short secret could be guessed from the digest of the settings.
    """
    if isinstance(value, Mapping):
        return {key: without_secrets(inner) for key, inner in value.items() if not _PRIVATE.search(str(key))}
    if isinstance(value, (list, tuple)):
        return [without_secrets(inner) for inner in value]
    return value


def document(body: object, kind: type[T], what: str) -> T:
    """Decode JSON. NaN and infinity are accepted, because the output check reports them.

    Args:
        body: JSON as bytes, or already decoded.
        kind: Type of the decoded document.
        what: Name of the document in the message.

    Raises:
        Failure: The body is not JSON, or has another type (``malformed``).
    """
    try:
        return msgspec.convert(json.loads(body) if isinstance(body, bytes) else body, kind)
    except (ValueError, RecursionError) as error:  # errors of msgspec are ValueErrors
        raise Failure("malformed", f"{what} does not follow the protocol: {one_line(error)}") from None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that ``Retry-After`` requests, at most an hour; None if the header has no number."""
    seconds = re.fullmatch(r"[0-9]{1,40}(\.[0-9]{0,9})?", headers.get("retry-after", ""))
    return min(float(seconds[0]), _LONGEST_RETRY_SECONDS) if seconds else None


def _parse_url(url: str) -> tuple[str, int, bool, str]:
    """Return host, port, True for TLS, and the path with its query."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if "@" in parts.netloc:  # leave the address out of the message, because it may contain a password
        raise UsageError(
            "url: the address contains a user or a password; put these into headers, from a file"
        )
    is_tls = parts.scheme == "https"
    is_known = is_tls or parts.scheme == "http"
    if not is_known or not parts.hostname or port == 0 or not re.fullmatch(r"[\x21-\x7e]+", url):
        shown = url.rpartition("@")[2]
        raise UsageError(
            f"url: `{shown}` is not an address; give http://HOST:PORT or https://HOST:PORT, with a path if needed"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.hostname, port or (443 if is_tls else 80), is_tls, path


def _check_header(name: str, value: str) -> None:
    if not re.fullmatch(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name) or not _is_value(value):
        raise UsageError(
            f"headers.{name}: the name or value has a character that headers cannot have; use Latin letters, "
            "digits and `-`"
        )
    if name.lower() in _OURS:
        raise UsageError(f"headers.{name}: the probe sets this header itself; remove the header")


def _is_value(text: str) -> bool:
    return re.fullmatch(r"[\x20-\x7e\x80-\xff]*", text) is not None


def _read_secret(name: str, path: str) -> str:
    content = read_file(f"headers.{name}", path, _MAX_SECRET_BYTES)
    text = content.decode("latin-1").strip()
    if not text or not _is_value(text):
        raise UsageError(
            f"headers.{name}: `{path}` does not have exactly one line with a value; write the value to the file"
        )
    return text


def read_file(place: str, path: str, max_bytes: int) -> bytes:
    """Read a file that the settings name.

    Raises:
        UsageError: The file cannot be read, or is too large; the text begins with the key in the settings.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{place}: `{path}` cannot be read ({explain(error)}); check the path and its permissions"
        ) from None
    if len(content) > max_bytes:
        raise UsageError(f"{place}: `{path}` is larger than {max_bytes} bytes; use a smaller file")
    return content
