"""Tells by the columns of a row whether its run failed."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files

import msgspec

from infercanary.compare.cells import as_text, plain_number

WORDS = msgspec.yaml.decode(
    files(__package__).joinpath("words.yaml").read_bytes(), type=dict[str, frozenset[str]]
)
"""Words in the names of columns and in their cells, by what they tell."""
_OF_CODES = WORDS["code"] | {
    "http",
    "grpc",
    "response",
    "resp",
    "exit",
    "return",
    "result",
    "request",
    "status",
}

# States of a row. What a zero or a word means is known once the whole column is: 0 is OK to gRPC and a refused
# connection to HTTP; `miss` is a failure beside `ok`, and not beside `hit`.
RUNS, FAILED, _ZERO, _WORD = range(4)


_MOST_STATES = 4096


@functools.lru_cache(maxsize=4096)
def outcome_kind(name: str) -> str:
    """Return whether a column tells how runs ended (`success`, `error`, `ended`, `status`, `said`); "" for others."""
    words = words_of(name.rpartition(".")[2]) or words_of(name)
    path = {*words, *(words_of(name.rpartition(".")[0]) & WORDS["error"])}
    if path & WORDS["no outcome"] or "%" in name:
        return ""
    if words == {"expected", "response"}:
        return "success"
    for kind in ("success", "error", "ended"):
        if path & WORDS[kind]:
            return kind
    if words & {"status", "outcome", "httpstatus"} or (words & WORDS["code"] and words <= _OF_CODES):
        return "status"
    return "said" if words <= WORDS["said"] or words == {"finish", "reason"} else ""


def words_of(name: str) -> set[str]:
    """Return the words of a name such as ``responseCode``, ``exit_code`` or ``Latency (ms)``, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


class Outcomes:
    """How rows ended."""

    def __init__(self) -> None:
        self.is_http = self.has_good = self.any = False
        self._states: dict[tuple[object, ...], int] = {}  # tables repeat few outcomes

    def state(self, row: Mapping[str, object], columns: Iterable[str]) -> int:
        """Return how the run of a row ended.

        Args:
            row: All of it.
            columns: Those that tell outcomes (:func:`outcome_kind`).
        """
        cells = [(name, as_text(row.get(name)).strip().lower()) for name in columns]
        self.any |= bool(cells)
        if (state := self._states.get(key := tuple(cells))) is None:
            state = self._state(cells)
            if len(self._states) < _MOST_STATES:
                self._states[key] = state
        return state

    def _state(self, cells: Iterable[tuple[str, str]]) -> int:
        """A column of successes decides, where it says anything: a tool may expect a 404."""
        state = RUNS
        for name, cell in cells:
            kind = outcome_kind(name)
            if kind == "success":
                if cell in ("true", "1", "yes", "y", "t", "1.0", "ok", "success", "pass", "passed"):
                    return RUNS
                if cell in ("false", "0", "no", "n", "f", "0.0", "ko", "fail", "failed", "error"):
                    state = FAILED
            elif kind == "status":
                state = state if state == FAILED else self._status(name, cell) or state
            elif kind == "said":  # anything else than a bad end may be what the run computed
                said = words_of(cell)
                state = FAILED if said and said <= WORDS["bad"] else state
            elif kind == "ended":
                is_limit = cell == "1" and "timeout" in words_of(name)
                state = FAILED if cell in ("true", "1", "yes") and not is_limit else state
            elif cell not in WORDS["nothing"]:
                number = plain_number(cell)
                state = FAILED if number is None or (number and number.is_integer()) else state
        return state

    def _status(self, name: str, cell: str) -> int:
        cell = re.sub(r"^https?(/[\d.]+)?[ :_-]+(?=\d)", "", cell)
        if not cell:
            return RUNS
        number = plain_number(cell.split()[0])
        if number is None:
            words = words_of(cell)
            if words & WORDS["bad"] or re.fullmatch("[45]xx", cell):
                return FAILED
            self.has_good |= bool(words & WORDS["good"])
            return RUNS if words & WORDS["good"] or not words or re.fullmatch("[123]xx", cell) else _WORD
        if words_of(name) & {"exit", "exitcode"}:
            return FAILED if number else RUNS
        if number == 101 or 200 <= number < 600:
            self.is_http = True
            return FAILED if number >= 400 else RUNS
        if number == 0:
            return _ZERO
        return FAILED if -256 <= number < 200 else RUNS  # 137 is a process that was killed

    def failed(self) -> list[int]:
        """Return the states that are failures, now that all rows are read."""
        return [FAILED, *[_ZERO] * self.is_http, *[_WORD] * self.has_good]
