"""The target for servers of language models that stream as OpenAI's API does: vLLM, SGLang, TGI, llama.cpp, Ollama, …

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from hashlib import sha256
from time import perf_counter
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from infercanary.command.settings import UsageError, convert
from infercanary.contract.report import Metric
from infercanary.probe.targets import Failure, Reading, register
from infercanary.probe.targets.wire.events import Event, events
from infercanary.probe.targets.wire.salt import SaltedRequest, placed
from infercanary.probe.targets.wire.server import (
    Server,
    ServerOptions,
    ServerTarget,
    converted,
    document,
    whole,
    without_secrets,
)
from infercanary.probe.timing import Phase

BETWEEN_TOKENS = Metric(
    "infercanary_between_tokens_seconds",
    "gauge",
    "Time between two tokens of a streamed completion. Median of the last run's repeats.",
    ("canary",),
    reading="It grows with the requests that the server decodes in one batch, and with slower memory or clocks.",
)


FIRST_TOKEN = Metric(
    "infercanary_first_token_seconds",
    "gauge",
    "Time to the first token of the last run: `salted` with a new prompt, `plain` with the prompt of the settings.",
    ("canary", "prompt"),
    reading="`salted`: queue and prefill. `plain`: queue, and the part of prefill that the prefix cache does not save.",
)


_ENDS = frozenset(
    (
        "stop", "length", "tool_calls", "function_call", "content_filter",  # OpenAI's own
        "eos_token", "stop_sequence", "model_length", "limit",  # of TGI, Mistral and llama.cpp
    )
)  # fmt: skip
"""The values of ``finish_reason`` with which a completion is whole."""
_NO_REASONS = (None, "", "null")


class _Details(msgspec.Struct):
    reasoning_tokens: float | None = None


class _Usage(msgspec.Struct):
    completion_tokens: float | None = None
    completion_tokens_details: _Details | None = None


class _Part(msgspec.Struct):
    text: str | None = None


_Text = str | list[_Part | str] | None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: _Text = None
    reasoning_content: _Text = None
    reasoning: _Text = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: Any = None
    error: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_MODEL_SIZES = ("n_params", "size")  # of llama.cpp


class Completion(NamedTuple):
    """What one stream gave."""

    text: str
    tokens: int
    between: float | None
    """Seconds from one token to the next; None where there are not two that came apart."""
    first: float = 0.0
    """Seconds from the request to the first text."""


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
    salt: bool = True
    """Whether each prompt begins with digits that are new, so that the server's prefix cache does not know it. Before
    the repeats of a run, the plain prompt is completed once, for the output check and for its first token."""
    timeout_seconds: float = 20.0


@register("openai")
class OpenaiTarget(ServerTarget):
    """Streams one completion of a fixed prompt, at temperature 0; a salt before it makes it new to the server.

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
        if not isinstance(options.salt, bool):
            raise UsageError(f"salt: `{options.salt}` is neither true nor false")
        self._model = model
        self._asked = request
        self._body = json.dumps(request).encode()
        self._salted_body = json.dumps(placed(request)).encode() if options.salt else None
        base = self._server.base or "/v1"
        self._path = f"{base}/chat/completions" if api == "chat" else f"{base}/completions"
        self._models = f"{base}/models"
        self._request = b""
        self._salted: SaltedRequest | None = None
        self._plain: Completion | None = None
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
        """Read the key again, connect anew if needed, and complete the plain prompt; before each run."""
        self._server.refresh()
        self._make_request()
        self._server.connection.open()
        self._seen = []
        if self._salted is not None:
            if self._plain is None:  # what the cache leaves is known from the second one on
                self._complete(self._request, _untimed)
            self._plain = self._complete(self._request, _untimed)

    def run(self, phase: Phase) -> Completion:
        """Stream one completion."""
        request = self._request if self._salted is None else self._salted.new()
        self._seen.append(completion := self._complete(request, phase))
        return completion

    def _complete(self, request: bytes, phase: Phase) -> Completion:
        begin = perf_counter()
        answer = self._server.connection.ask(
            "POST", request, phase, wait="first_token", receive="first_token"
        )
        if answer.status != 200:
            self._server.refuse("the completion failed", answer, answer.read())
        self._server.require_plain(answer)
        stream = _Stream(self._server)
        with closing(answer), closing(answer.pieces()) as pieces:
            if (kind := answer.headers.get_content_type()) != "text/event-stream":
                raise Failure(
                    "malformed", f"the completion is not streamed: its type is {kind}, not text/event-stream"
                )
            received = events(pieces)
            with phase("first_token"):
                while not stream.has_text and stream.take(next(received, None)):
                    pass
            with phase("tokens"):
                while stream.take(next(received, None)):
                    pass
        return stream.completion()._replace(first=stream.first - begin)

    def values(self, result: Completion) -> list[float]:
        """Return numbers that differ for another text, or another count of tokens: of the plain prompt's completion."""
        result = result if self._plain is None else self._plain
        return list(map(float, sha256(f"{result.tokens} {result.text}".encode()).digest()))

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the last completion."""
        return self._seen[-1].tokens if self._seen else None

    def readings(self) -> list[Reading]:
        """Return the time between tokens, and the time to the first, salted and plain."""
        found = []
        if self._seen:
            first = statistics.median(seen.first for seen in self._seen)
            found.append(Reading(FIRST_TOKEN, first, ("plain" if self._salted is None else "salted",)))
        if self._plain is not None:
            found.append(Reading(FIRST_TOKEN, self._plain.first, ("plain",)))
        if between := [seen.between for seen in self._seen if seen.between is not None]:
            found.append(Reading(BETWEEN_TOKENS, statistics.median(between)))
        return found

    def environment(self) -> dict[str, str]:
        """Report whether prompts are salted; the protocol has no version."""
        return {} if self._salted_body is None else {"openai_prompt": "salted"}

    def identity(self) -> str:
        """Return what the server's list says of the model; empty where it has no such list.

        Its `created` is left out: vLLM, SGLang and llama.cpp have the time of the request there.
        """
        answer, body = self._server.get(self._models)
        if answer.status != 200:
            return ""
        self._server.require_plain(answer)
        for model in document(body, _Models, "the list of models").data:
            if model.id == self._model:
                meta = model.meta or {}
                size = [f"{key} {meta[key]}" for key in _MODEL_SIZES if key in meta]
                root = [f"root {model.root}"] if model.root and model.root != model.id else []
                return ", ".join([f"server: {model.id}", *root, *size])
        return ""

    def settings(self) -> dict[str, object]:
        """List what is asked for: the prompt, and how it is completed."""
        asked = {key: value for key, value in without_secrets(self._asked).items() if key != "model"}
        return {
            "request": asked,
            "path": self._path.rpartition("/v1/")[2],
            "plain": self._salted_body is None,
        }

    def close(self) -> None:
        """Close the connection."""
        self._server.close()
        self._request = b""
        self._salted = self._plain = None
        self._seen = []

    def _require_ready(self) -> None:
        answer, body = self._server.get(self._models)
        if answer.status == 503:  # any other status is fine: not all servers have that list
            self._server.refuse("the server is not ready", answer, body, "not_ready")

    def _make_request(self) -> None:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        self._request = self._server.request("POST", self._path, self._body, headers)
        if self._salted_body is not None:
            self._salted = SaltedRequest(self._server.request("POST", self._path, self._salted_body, headers))


def _untimed(_: str) -> AbstractContextManager[None]:
    """A phase that is not timed."""
    return nullcontext()


class _Stream:
    """A completion as its events come in. It is whole only with an end that is known to be one."""

    def __init__(self, server: Server) -> None:
        self.first = self._last = 0.0
        self._server = server
        self._texts: dict[int, str] = {}  # of each choice
        self._ended: set[int] = set()  # choices with a known good reason
        self._pieces = 0
        self._counted: int | None = None
        self._reasoned = 0  # tokens, as the server counts them
        self._shows_reasoning = False
        self._unknown = ""  # an event that is no part of a completion
        self._is_done = False

    @property
    def has_text(self) -> bool:
        """Whether the first text is there."""
        return self._pieces > 0

    def take(self, event: Event | None) -> bool:
        """Take the next event, or None at the end; return whether there is more to come."""
        if event is None:
            return False
        if self._is_done:
            return True
        if event.data.strip() == "[DONE]":
            self._is_done = True
        elif event.name == "error":
            self._break_off(event.data)
        elif event.data:
            self._take_frame(event.data)
        return True

    def completion(self) -> Completion:
        """Return the whole completion; fail where there is none."""
        if self._unknown and not self._ended:
            self._break_off(self._unknown)
        # Not every server says `[DONE]`, and not every one gives a reason.
        if self._texts.keys() - self._ended if self._ended else not self._is_done:
            raise Failure("incomplete", "the stream ended before the completion did")
        text = "".join(text for _, text in sorted(self._texts.items()))
        if not text:
            raise Failure("wrong_answer", "the completion holds no text")
        tokens = self._pieces if self._counted is None else self._counted
        if tokens < 1:
            raise Failure(
                "wrong_answer", f"the server counts {tokens} tokens in a completion that holds text"
            )
        # Reasoning that a server does not show comes before the first token, and not between two of them.
        came = tokens if self._shows_reasoning else tokens - self._reasoned
        apart = self._pieces > 1 and came > 1
        return Completion(text, tokens, (self._last - self.first) / (came - 1) if apart else None)

    def _take_frame(self, data: str) -> None:
        frame = document(data.encode(), Any, _FRAME)
        if not isinstance(frame, dict) or _is_error(frame):
            self._break_off(data)
        if frame.keys().isdisjoint(("choices", "usage")):
            self._unknown = self._unknown or data
        chunk = converted(frame, _Chunk, _FRAME)
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            details = chunk.usage.completion_tokens_details
            self._counted = _count(chunk.usage.completion_tokens)
            self._reasoned = max(0, _count((details and details.reasoning_tokens) or 0))
        for choice in chunk.choices or ():
            self._take_choice(choice, data)

    def _take_choice(self, choice: _Choice, data: str) -> None:
        index, reason = choice.index or 0, choice.finish_reason
        if choice.error:
            self._break_off(data)
        if isinstance(reason, str) and reason in _ENDS:
            self._ended.add(index)
        elif reason not in _NO_REASONS:
            word = self._server.excerpt(str(reason).encode(), 100)
            raise Failure("incomplete", f"the completion was broken off: its finish_reason is `{word}`")
        delta = choice.delta or _Delta()
        reasoning = _text(delta.reasoning_content) or _text(delta.reasoning)
        self._shows_reasoning |= bool(reasoning)
        text = choice.text or _text(delta.content) or reasoning or _calls(delta)
        self._texts[index] = self._texts.get(index, "") + text
        if text:
            self._last = perf_counter()
            self.first = self.first or self._last
            self._pieces += 1

    def _break_off(self, data: str) -> NoReturn:
        said = self._server.excerpt(data.encode(), 300)
        raise Failure("error_answer", f"the stream broke off with an error: {said}")


_FRAME = "an event of the stream"


def _is_error(frame: Mapping[str, Any]) -> bool:
    """Whether an event says that the server failed: ``error``, ``error_code``, ``object: error`` and the like."""
    return any(value for key, value in frame.items() if "error" in key.lower()) or "error" in (
        frame.get("object"),
        frame.get("type"),
        frame.get("status"),
    )


def _text(content: _Text) -> str:
    """Text that came whole, or as a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else part.text or "" for part in content)


def _calls(delta: _Delta) -> str:
    """Names and arguments of the functions that a model calls."""
    functions = [delta.function_call, *(call.function for call in delta.tool_calls or ())]
    return "".join((f.name or "") + (f.arguments or "") for f in functions if f is not None)


def _count(number: float) -> int:
    """A number of tokens; some servers write ``8.0``."""
    if not math.isfinite(number) or number != int(number):
        raise Failure("malformed", f"the server counts {number:g} tokens, which is no whole number")
    return int(number)


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
