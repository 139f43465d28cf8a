"""The target for servers of language models that stream as OpenAI's API does: vLLM, SGLang, TGI, llama.cpp, Ollama, …

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from time import perf_counter
from typing import Any, Literal, NamedTuple

import msgspec

from infercanary.command.settings import UsageError, convert
from infercanary.contract.report import Metric
from infercanary.probe.targets import Failure, Reading, register
from infercanary.probe.targets.wire.events import events
from infercanary.probe.targets.wire.server import Server, ServerOptions, ServerTarget, document, whole
from infercanary.probe.timing import Phase

BETWEEN_TOKENS = Metric(
    "infercanary_between_tokens_seconds",
    "gauge",
    "Time between two tokens of a streamed completion: from its first to its last one, over the tokens after the "
    "first. Median of the last run's repeats.",
    ("canary",),
    reading="The reader's pace. It grows with the batch that the server decodes at once, and with slower memory or "
    "clocks; the time to the first token is the phases `connect`, `send` and `first_token` of "
    "`infercanary_phase_seconds`.",
)
TOKENS = Metric(
    "infercanary_output_tokens",
    "gauge",
    "Tokens in the last streamed completion: as the server counts them in `usage`, or else the pieces that came.",
    ("canary",),
    reading="The same in each run. With it the time changes, so that latencies no longer compare: the run is then "
    "tagged `output_changed`.",
)


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    completion_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class Completion(NamedTuple):
    """What one stream gave."""

    text: str
    tokens: int
    between: float | None
    """Seconds from one token to the next; None where there are not two that came apart."""


class OpenaiOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of ``target: openai``; ``url`` is the API's, with its version: ``http://HOST:8000/v1``."""

    model: str
    """The model's name."""
    prompt: str | None = None
    """Text; with ``api: chat`` what the user says."""
    messages: Sequence[Any] | None = None
    """Instead of a prompt: a list of ``role`` and ``content``."""
    api: Literal["chat", "completions"] = "chat"
    max_tokens: int = 32
    """The most to ask for. A model that ends earlier makes a shorter run; see ``body``."""
    seed: int = 0
    """The server's, for sampling."""
    body: Mapping[str, Any] | None = None
    """More keys of the request, such as ``ignore_eos: true``; they replace those made here."""
    key_file: str | None = None
    """A file with the API key, read again before each run; it is in no message, log or report."""
    timeout_seconds: float = 20.0


@register("openai")
class OpenaiTarget(ServerTarget):
    """Streams one completion of a fixed prompt, at temperature 0.

    Phases: ``connect``, ``send``, ``first_token`` (until the first text is there), ``tokens`` (the rest).
    """

    options_type = OpenaiOptions

    def __init__(self, options: OpenaiOptions) -> None:
        """Check the options.

        Args:
            options: As in the settings.

        Raises:
            UsageError: An option cannot be meant so.
        """
        super().__init__(_with_key(options))
        model, api = options.model, options.api
        if not isinstance(model, str) or not model:
            raise UsageError(f"model: `{model}` is no name of a model")
        if api not in ("chat", "completions"):
            raise UsageError(f"api: `{api}` is neither chat nor completions")
        more = convert({} if options.body is None else options.body, dict[str, Any], "body")
        request = {
            "model": model,
            **_asked(api, options.prompt, options.messages),
            "max_tokens": whole("max_tokens", options.max_tokens, least=1),
            "temperature": 0,
            "seed": whole("seed", options.seed, least=0),
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        if request["stream"] is not True:
            raise UsageError("body.stream: only a stream is timed here; use `target: http` for the rest")
        self._body = json.dumps(request).encode()
        base = self._server.base or "/v1"
        self._path = f"{base}/chat/completions" if api == "chat" else f"{base}/completions"
        self._models = f"{base}/models"
        self._request = b""
        self._seen: list[Completion] = []

    def open(self) -> None:
        """Wait until the server can be connected to and does not say that it still loads.

        Raises:
            UsageError: A file cannot be read.
            Failure: The server cannot be reached, or is not ready in time.
        """
        self._server.open()
        self._server.until_ready(self._require_ready)
        self._make_request()

    def prepare(self) -> None:
        """Read the key again, and connect if the server closed the connection; before each run."""
        self._server.refresh()
        self._make_request()
        self._server.connection.open()
        self._seen = []

    def run(self, phase: Phase) -> Completion:
        """Stream one completion."""
        answer = self._server.connection.ask(
            "POST", self._request, phase, wait="first_token", receive="first_token"
        )
        if answer.status != 200:
            self._server.refuse("the completion failed", answer, answer.read())
        stream = _Stream(self._server)
        with closing(answer), closing(answer.pieces()) as pieces:
            if (kind := answer.headers.get_content_type()) != "text/event-stream":
                raise Failure(
                    "malformed", f"the completion is not streamed: its type is {kind}, not text/event-stream"
                )
            received = events(pieces)
            with phase("first_token"):
                while not stream.text and stream.take(next(received, None)):
                    pass
            with phase("tokens"):
                while stream.take(next(received, None)):
                    pass
        self._seen.append(completion := stream.completion())
        return completion

    def values(self, result: Completion) -> list[float]:
        """Return numbers that differ for another text, or another count of tokens."""
        return list(map(float, sha256(f"{result.tokens} {result.text}".encode()).digest()))

    def readings(self) -> list[Reading]:
        """Return the time between tokens, and how many there are."""
        found = [Reading(TOKENS, self._seen[-1].tokens)] if self._seen else []
        if between := [seen.between for seen in self._seen if seen.between is not None]:
            found.append(Reading(BETWEEN_TOKENS, statistics.median(between)))
        return found

    def environment(self) -> dict[str, str]:
        """Report nothing: the protocol has no version."""
        return {}

    def close(self) -> None:
        """Close the connection."""
        self._server.close()
        self._request = b""
        self._seen = []

    def _require_ready(self) -> None:
        answer, body = self._server.get(self._models)
        if answer.status == 503:  # any other status is fine: not all servers have that list
            self._server.refuse("the server is not ready", answer, body, "not_ready")

    def _make_request(self) -> None:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        self._request = self._server.request("POST", self._path, self._body, headers)


class _Stream:
    """A completion as its events come in."""

    def __init__(self, server: Server) -> None:
        self.text = ""
        self._server = server
        self._pieces = 0
        self._counted: int | None = None
        self._reasoned = 0  # tokens, as the server counts them
        self._shows_reasoning = False
        self._first = self._last = 0.0
        self._is_done = False
        self._is_finished = False

    def take(self, data: str | None) -> bool:
        """Take the next event's data, or None at the end; return whether there is more to come."""
        if data is None:
            return False
        if self._is_done:
            return True
        if data == "[DONE]":
            self._is_done = True
            return True
        event = document(data.encode(), _Event, "an event of the stream")
        if event.error is not None:
            said = self._server.excerpt(json.dumps(event.error).encode(), 300)
            raise Failure("error_answer", f"the stream broke off with an error: {said}")
        if event.usage is not None and event.usage.completion_tokens is not None:
            self._counted = event.usage.completion_tokens
            details = event.usage.completion_tokens_details
            self._reasoned = max(0, (details.reasoning_tokens if details is not None else None) or 0)
        for choice in event.choices[:1]:
            delta = choice.delta or _Delta()
            self._is_finished |= choice.finish_reason is not None
            reasoning = delta.reasoning_content or delta.reasoning or ""
            self._shows_reasoning |= bool(reasoning)
            text = choice.text or delta.content or reasoning
            if text:
                self._last = perf_counter()
                self._first = self._first or self._last
                self._pieces += 1
                self.text += text
        return True

    def completion(self) -> Completion:
        """Return the whole completion; fail where there is none."""
        if not (self._is_done or self._is_finished):  # not every server says `[DONE]`
            raise Failure("incomplete", "the stream ended before the completion did")
        if not self.text:
            raise Failure("wrong_answer", "the completion holds no text")
        tokens = self._pieces if self._counted is None else self._counted
        if tokens < 1:
            raise Failure(
                "wrong_answer", f"the server counts {tokens} tokens in a completion that holds text"
            )
        # Reasoning that a server does not show comes before the first token, and not between two of them.
        came = tokens if self._shows_reasoning else tokens - self._reasoned
        apart = self._pieces > 1 and came > 1
        return Completion(self.text, tokens, (self._last - self._first) / (came - 1) if apart else None)


def _with_key(options: OpenaiOptions) -> OpenaiOptions:
    """The options with the key as a header like any other."""
    if options.key_file is None:
        return options
    headers = options.headers or {}
    if any(name.lower() == "authorization" for name in headers if isinstance(name, str)):
        raise UsageError("key_file: headers has Authorization already; keep one")
    key = {"file": options.key_file, "prefix": "Bearer "}
    return msgspec.structs.replace(options, headers={**headers, "Authorization": key})


def _asked(api: str, prompt: str | None, messages: Sequence[Any] | None) -> dict[str, Any]:
    if (prompt is None) == (messages is None):
        raise UsageError("prompt: give one of prompt and messages")
    if messages is not None:
        if api != "chat":
            raise UsageError("messages: they are for `api: chat`; give a prompt")
        return {"messages": convert(messages, list[dict[str, Any]], "messages")}
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f"prompt: `{prompt}` is no text; put it in quotes")
    if api == "completions":
        return {"prompt": prompt}
    return {"messages": [{"role": "user", "content": prompt}]}
