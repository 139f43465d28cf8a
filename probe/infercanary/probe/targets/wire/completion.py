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
    "eos_token", "stop_sequence", "model_length", "limit",  # used by TGI, Mistral and llama.cpp
)  # fmt: skip
"""Values of ``finish_reason`` that mean a complete answer."""
_NO_REASONS = (None, "", "null")


_Count = Annotated[float, Meta(ge=0, multiple_of=1)]  # some servers send a float such as 8.0


class _Details(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    completion_tokens: _Count | None = None
    completion_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: Any = None
    error: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class Completion(NamedTuple):
    """A whole completion."""

    text: str
    tokens: int
    between: float | None
    """Seconds between two tokens; None if fewer than two arrived separately."""
    first: float
    """Seconds from the request to the first text."""


class Stream:
    """Builds a completion from the events of a stream. Without a known end, the completion counts as incomplete."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin = perf_counter()
        self._first = self._last = 0.0
        self._texts: dict[int, str] = {}  # choice → text
        self._ended: set[int] = set()  # choices with a known finish_reason
        self.pieces = 0
        """Number of pieces of text so far."""
        self._usage = _Usage()
        self._shows_reasoning = False
        self._unknown = ""  # first event that is not part of a completion
        self._is_done = False

    def take(self, event: Event | None, received_at: float) -> bool:
        """Process an event (None at the end of the stream) that arrived at ``received_at``; return False at the end."""
        if event is None:
            return False
        if self._is_done:
            return True
        if event.data.strip() == "[DONE]":
            self._is_done = True
        elif event.name == "error":
            self._break_off(event.data)
        elif event.data:
            self._take_frame(event.data, received_at)
        return True

    def completion(self) -> Completion:
        """Return the whole completion.

        Raises:
            Failure: The completion broke off, or has no text.
        """
        if self._unknown and not self._ended:
            self._break_off(self._unknown)
        # Some servers send no `[DONE]`, and some send no finish_reason: either is enough.
        if self._texts.keys() - self._ended if self._ended else not self._is_done:
            raise Failure("incomplete", "the stream ended before the end of the completion")
        text = "".join(text for _, text in sorted(self._texts.items()))
        if not text:
            raise Failure("wrong_answer", "the completion has no text")
        counted = self._usage.completion_tokens
        tokens = streamed = self.pieces if counted is None else int(counted)
        # Hidden reasoning comes before the first token of the text: exclude its tokens from the time between tokens.
        if self._usage.completion_tokens_details is not None and not self._shows_reasoning:
            streamed -= int(self._usage.completion_tokens_details.reasoning_tokens or 0)
        is_apart = self.pieces > 1 and streamed > 1
        between = (self._last - self._first) / (streamed - 1) if is_apart else None
        return Completion(text, tokens, between, self._first - self._begin)

    def _take_frame(self, data: str, received_at: float) -> None:
        frame = document(data.encode(), Any, _FRAME)
        if not isinstance(frame, dict) or _is_error(frame):
            self._break_off(data)
        if frame.keys().isdisjoint(("choices", "usage")):
            self._unknown = self._unknown or data
        chunk = document(frame, _Chunk, _FRAME)
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.error:
                self._break_off(data)
            self._take_choice(choice, received_at)

    def _take_choice(self, choice: _Choice, received_at: float) -> None:
        index, reason, delta = choice.index or 0, choice.finish_reason, choice.delta or _Delta()
        if isinstance(reason, str) and reason in _ENDS:
            self._ended.add(index)
        elif reason not in _NO_REASONS:
            word = self._server.excerpt(str(reason).encode(), 100)
            raise Failure("incomplete", f"the completion was interrupted: its finish_reason is `{word}`")
        reasoning = delta.reasoning_content or delta.reasoning or ""
        self._shows_reasoning |= bool(reasoning)
        text = choice.text or delta.content or reasoning
        self._texts[index] = self._texts.get(index, "") + text
        if text:
            self._last = received_at
            self._first = self._first or self._last
            self.pieces += 1

    def _break_off(self, data: str) -> NoReturn:
        said = self._server.excerpt(data.encode(), 300)
        raise Failure("error_answer", f"the stream was interrupted by an error: {said}")


_FRAME = "an event of the stream"


def _is_error(frame: Mapping[str, Any]) -> bool:
    """True if an event reports a server error: ``error``, ``error_code``, ``object: error`` and similar."""
    kinds = [frame.get(key) for key in ("object", "type", "status")]
    return "error" in kinds or any(value for key, value in frame.items() if "error" in key.lower())
