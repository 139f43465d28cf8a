"""A streamed completion of OpenAI's API: its events, text, tokens and times.

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
from msgspec import Meta

from infercanary.probe.targets import Failure
from infercanary.probe.targets.wire.events import Event
from infercanary.probe.targets.wire.server import Server, document

_ENDS = (
    "stop", "length", "tool_calls", "function_call", "content_filter",  # OpenAI's own
    "eos_token", "stop_sequence", "model_length", "limit",  # TGI, Mistral and llama.cpp use this name
)  # fmt: skip
"""Values of ``finish_reason`` for a complete answer."""
_NO_REASONS = (None, "", "null")


_Count = Annotated[float, Meta(ge=0, multiple_of=1)]  # some servers send a float, such as 8.0


class _Usage(msgspec.Struct):
    completion_tokens: _Count | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: Any = None
    error: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class Completion(NamedTuple):
    """A complete completion, with its times."""

    text: str
    tokens: int
    between: float | None
    """Seconds between two tokens; None if fewer than two tokens arrived separately."""
    first: float
    """Seconds from the request to the first text."""


class Stream:
    """Builds a completion from the events of a stream. Without a known end, the completion is incomplete."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin = perf_counter()
        self._first = self._last = 0.0
        self._text = ""
        self.pieces = 0
        """Number of pieces of text received so far."""
        self._counted: float | None = None  # number of tokens that the server has reported
        self._has_reason = False  # True after a finish_reason with a known meaning
        self._unknown = ""  # first event that does not belong to a completion
        self._is_done = False

    def take(self, event: Event, received_at: float) -> None:
        """Process an event that arrived at ``received_at``. Ignore events after ``[DONE]``."""
        self._is_done |= event.data.strip() == "[DONE]"
        if self._is_done:
            return
        if event.name == "error":
            self._break_off(event.data)
        elif event.data:
            self._take_frame(event.data, received_at)

    def completion(self) -> Completion:
        """Return the whole completion.

        Raises:
            Failure: The completion is incomplete, or has no text.
        """
        if self._unknown and not self._has_reason:
            self._break_off(self._unknown)
        # Some servers send no `[DONE]`, and some send no finish_reason, so one of them is enough.
        if not (self._has_reason or self._is_done):
            raise Failure("incomplete", "the stream ended before the end of the completion")
        if not self._text:
            raise Failure("wrong_answer", "the completion has no text")
        tokens = self.pieces if self._counted is None else int(self._counted)
        is_apart = self.pieces > 1 and tokens > 1
        between = (self._last - self._first) / (tokens - 1) if is_apart else None
        return Completion(self._text, tokens, between, self._first - self._begin)

    def _take_frame(self, data: str, received_at: float) -> None:
        frame = document(data.encode(), Any, _FRAME)
        if not isinstance(frame, dict) or _is_error(frame):
            self._break_off(data)
        if frame.keys().isdisjoint(("choices", "usage")):
            self._unknown = self._unknown or data
        chunk = document(frame, _Chunk, _FRAME)
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self._counted = chunk.usage.completion_tokens
        for choice in chunk.choices or ():
            if choice.error:
                self._break_off(data)
            self._take_choice(choice, received_at)

    def _take_choice(self, choice: _Choice, received_at: float) -> None:
        reason, delta = choice.finish_reason, choice.delta or _Delta()
        if reason in _ENDS:
            self._has_reason = True
        elif reason not in _NO_REASONS:
            word = self._server.excerpt(str(reason).encode(), 100)
            raise Failure("incomplete", f"the completion was interrupted: its finish_reason is `{word}`")
        text = choice.text or delta.content or delta.reasoning_content or delta.reasoning
        if text:
            self._text += text
            self._last = received_at
            self._first = self._first or self._last
            self.pieces += 1

    def _break_off(self, data: str) -> NoReturn:
        said = self._server.excerpt(data.encode(), 300)
        raise Failure("error_answer", f"the stream was interrupted by an error: {said}")


_FRAME = "an event of the stream"


def _is_error(frame: Mapping[str, Any]) -> bool:
    """True if an event reports a server error, such as ``error``, ``error_code`` or ``object: error``."""
    return "error" in frame.values() or any(value for key, value in frame.items() if "error" in key.lower())
