"""Target for servers of language models that stream like OpenAI's API: vLLM, SGLang, TGI, llama.cpp, Ollama, …

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import json
from contextlib import closing
from hashlib import sha256
from statistics import median
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError
from infercanary.contract.report import Metric
from infercanary.probe.targets import Failure, Reading, register
from infercanary.probe.targets.engines.options import Seed
from infercanary.probe.targets.wire.completion import Completion, Stream
from infercanary.probe.targets.wire.connection import untimed
from infercanary.probe.targets.wire.events import events
from infercanary.probe.targets.wire.salt import salted, with_new_salt
from infercanary.probe.targets.wire.server import Name, ServerOptions, Timeout, without_secrets
from infercanary.probe.targets.wire.server_target import ServerTarget
from infercanary.probe.timing import Phase

BETWEEN_TOKENS = Metric(
    "infercanary_between_tokens_seconds",
    "gauge",
    "Time between two tokens of a streamed completion. Median of the last run's repeats.",
    ("canary",),
    reading="This time grows with the number of requests in the server's batch, and with slower memory or clocks.",
)


FIRST_TOKEN = Metric(
    "infercanary_first_token_seconds",
    "gauge",
    "Time to the first token in the last run: `salted` with a new prompt, `plain` with the prompt of the settings.",
    ("canary", "prompt"),
    reading="`salted`: queue and prefill. `plain`: queue, and the part of prefill that the prefix cache does not "
    "save.",
)


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


_MODEL_SIZES = ("n_params", "size")  # from llama.cpp


class OpenaiOptions(ServerOptions, frozen=True, kw_only=True):
    """Options of ``target: openai``; ``url`` is the API's address with its version: ``http://HOST:8000/v1``."""

    model: Name
    """The model's name."""
    prompt: Name | None = None
    """Text of the prompt; with ``api: chat`` the message of the user."""
    messages: list[dict[str, Any]] | None = None
    """List of ``role`` and ``content``, in place of ``prompt``."""
    api: Literal["chat", "completions"] = "chat"
    max_tokens: Annotated[int, Meta(ge=1, lt=2**62)] = 32
    """Largest number of tokens to request. A model may stop earlier; to prevent this, see ``body``."""
    seed: Seed = 0
    """Seed that the server uses for sampling."""
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    """Additional keys of the request, such as ``ignore_eos: true``; they replace the default keys."""
    salt: bool = True
    """True to begin each prompt with new digits, so that the prompt is not in the server's prefix cache. Before the
    repeats of a run, the plain prompt is completed once, for the output check and for the time to its first token.
    """
    timeout_seconds: Timeout = 20.0


@register("openai")
class OpenaiTarget(ServerTarget):
    """Streams one completion of a fixed prompt at temperature 0. A salt makes each prompt new to the server's cache.

    Phases: ``connect``, ``send``, ``first_token`` (until the first text arrives), ``tokens`` (the rest).
    """

    options_type = OpenaiOptions
    _options: OpenaiOptions

    def __init__(self, options: OpenaiOptions) -> None:
        """Check the options.

        Raises:
            UsageError: An option is invalid.
        """
        super().__init__(options)
        options = self._options
        request = {
            "model": options.model,
            **_prompt(options),
            "max_tokens": options.max_tokens,
            "temperature": 0,
            "seed": options.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options.body,
        }
        if request["stream"] is not True:
            raise UsageError(
                "body.stream: this target times only streams; use `target: http` for other answers"
            )
        base = self._server.base or "/v1"
        self._models = f"{base}/models"
        self._path = f"{base}/chat/completions" if options.api == "chat" else f"{base}/completions"
        self._model = options.model
        self._asked = request
        self._body = json.dumps(request).encode()
        self._salted_body = json.dumps(salted(request)).encode() if options.salt else b""
        self._plain: Completion | None = None
        self._completions: list[Completion] = []

    def prepare(self) -> None:
        """Read header files again, reconnect if necessary, and complete the plain prompt. Called before each run."""
        super().prepare()
        self._completions = []
        if self._salted_body:
            if self._plain is None:  # the first plain completion fills the prefix cache
                self._complete(self._request, untimed)
            self._plain = self._complete(self._request, untimed)

    def run(self, phase: Phase) -> Completion:
        request = with_new_salt(self._salted_request) if self._salted_body else self._request
        self._completions.append(completion := self._complete(request, phase))
        return completion

    def values(self, result: Completion) -> list[float]:
        """Return numbers that change if the text or its token count changes.

        If prompts are salted, the numbers come from the plain prompt's completion.
        """
        result = self._plain or result
        return list(map(float, sha256(f"{result.tokens} {result.text}".encode()).digest()))

    @property
    def output_tokens(self) -> int | None:
        """Number of tokens in the last completion."""
        return self._completions[-1].tokens if self._completions else None

    def readings(self) -> list[Reading]:
        """Return the time between tokens, and the times to the first token with a salted and with the plain prompt."""
        times = []
        if self._completions:
            first = median(completion.first for completion in self._completions)
            times.append(Reading(FIRST_TOKEN, first, ("salted" if self._salted_body else "plain",)))
        if self._plain is not None:
            times.append(Reading(FIRST_TOKEN, self._plain.first, ("plain",)))
        if between := [c.between for c in self._completions if c.between is not None]:
            times.append(Reading(BETWEEN_TOKENS, median(between)))
        return times

    def environment(self) -> dict[str, str]:
        """Return whether prompts are salted. The protocol reports no version."""
        return {"openai_prompt": "salted"} if self._salted_body else {}

    def identity(self) -> str:
        """Return the server's description of the model; empty if the server has no list of models.

        The field `created` is left out, because vLLM, SGLang and llama.cpp put the request's time in this field.
        """
        listed = self._server.get_document(self._models, _Models, "the list of models")
        for model in listed.data:
            if model.id == self._model:
                meta = model.meta or {}
                size = [f"{key} {meta[key]}" for key in _MODEL_SIZES if key in meta]
                root = [f"root {model.root}"] if model.root and model.root != model.id else []
                return ", ".join([f"server: {model.id}", *root, *size])
        return ""

    def settings(self) -> dict[str, object]:
        """Return the prompt and the other keys of the request."""
        asked = {key: value for key, value in without_secrets(self._asked).items() if key != "model"}
        return {
            "request": asked,
            "path": self._path.rpartition("/v1/")[2],
            "plain": not self._salted_body,
        }

    def close(self) -> None:
        super().close()
        self._plain = None

    def _require_ready(self) -> None:
        answer, body = self._server.get(self._models)
        if answer.status == 503:  # accept any other status, because some servers have no list of models
            self._server.refuse("the server is not ready", answer, body, "not_ready")

    def _make_request(self) -> None:
        super()._make_request()
        self._salted_request = self._server.request(
            self._method, self._path, self._salted_body, self._headers
        )

    def _complete(self, request: bytes, phase: Phase) -> Completion:
        stream, server = Stream(self._server), self._server
        answer = server.ask("POST", request, phase, "first_token", "first_token")
        server.require("the completion failed", answer, b"" if answer.status == 200 else server.read())
        kind = answer.headers.get("content-type", "unknown").partition(";")[0].strip().lower()
        with closing(server.pieces()) as pieces:
            if kind != "text/event-stream":
                raise Failure(
                    "malformed", f"the completion is not streamed: its type is {kind}, not text/event-stream"
                )
            received = events(pieces)
            with phase("first_token"):
                for event in received:
                    stream.take(event, server.received_at)
                    if stream.pieces:
                        break
            with phase("tokens"):
                for event in received:
                    stream.take(event, server.received_at)
        return stream.completion()


def _prompt(options: OpenaiOptions) -> dict[str, Any]:
    if (options.prompt is None) == (options.messages is None):
        raise UsageError("prompt: give either prompt or messages")
    if options.api == "chat":
        return {"messages": options.messages or [{"role": "user", "content": options.prompt}]}
    if options.messages is not None:
        raise UsageError("messages: only for `api: chat`; give a prompt")
    return {"prompt": options.prompt}
