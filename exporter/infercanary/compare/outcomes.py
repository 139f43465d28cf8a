"""Tells by the columns of a row whether its run failed."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from infercanary.compare.cells import as_text, plain_number

_NO = {
    "", "0", "false", "no", "n", "f", "none", "null", "nan", "nil", "-", "n/a", "na", "[]", "{}", "ok", "success",
    "no error",
}  # fmt: skip
_SUCCESS = {"success", "successful", "succeeded", "ok", "passed", "completed"}
_ERROR = {"error", "errors", "errorcode", "err", "exception", "failure", "failures", "failed", "fail"}
_ENDED = {"cancelled", "canceled", "aborted", "timeout", "timed"}  # a number may be a limit
_CODE = {"code", "codes", "rc", "exitcode", "retcode", "returncode", "statuscode", "responsecode", "httpcode"}
_OF_CODES = _CODE | {"http", "grpc", "response", "resp", "exit", "return", "result", "request", "status"}
_NO_OUTCOME = {
    "rate", "ratio", "percent", "pct", "std", "stddev", "margin", "mean", "s", "sec", "ms", "us", "ns", "time",
    "bar", "bound", "tolerance", "abs", "max", "min", "probability", "bytes", "size", "count", "total", "num",
    "requests", "tests", "retries",
}  # fmt: skip
_SAID = {"result", "state", "verdict"}
_GOOD = {
    "ok", "success", "succeeded", "successful", "passed", "pass", "completed", "complete", "done", "finished",
}  # fmt: skip
_BAD = {
    "error", "err", "fail", "failed", "failure", "timeout", "timedout", "timed", "exception", "cancelled", "canceled",
    "aborted", "abort", "unavailable", "refused", "denied", "ko", "unsuccessful", "rejected", "crashed", "killed",
    "exceeded", "exhausted", "internal", "unauthenticated", "reset",
    "deadlineexceeded", "resourceexhausted", "permissiondenied", "invalidargument", "unimplemented", "dataloss",
    "failedprecondition",
}  # fmt: skip

# States of a row. What a zero or a word means is known once the whole column is: 0 is OK to gRPC and a refused
# connection to HTTP; `miss` is a failure beside `ok`, and not beside `hit`.
RUNS, FAILED, _ZERO, _WORD = range(4)


_MOST_STATES = 4096


@functools.lru_cache(maxsize=4096)
def outcome_kind(name: str) -> str:
    """Return whether a column tells how runs ended (`success`, `error`, `ended`, `status`, `said`); "" for others."""
    words = words_of(name.rpartition(".")[2]) or words_of(name)
    path = {*words, *(words_of(name.rpartition(".")[0]) & _ERROR)}
    if path & _NO_OUTCOME or "%" in name:
        return ""
    if words == {"expected", "response"}:
        return "success"
    for kind, known in (("success", _SUCCESS), ("error", _ERROR), ("ended", _ENDED)):
        if path & known:
            return kind
    if words & {"status", "outcome", "httpstatus"} or (words & _CODE and words <= _OF_CODES):
        return "status"
    return "said" if words <= _SAID or words == {"finish", "reason"} else ""


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
                state = FAILED if said and said <= _BAD else state
            elif kind == "ended":
                is_limit = cell == "1" and "timeout" in words_of(name)
                state = FAILED if cell in ("true", "1", "yes") and not is_limit else state
            elif cell not in _NO:
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
            if words & _BAD or re.fullmatch("[45]xx", cell):
                return FAILED
            self.has_good |= bool(words & _GOOD)
            return RUNS if words & _GOOD or not words or re.fullmatch("[123]xx", cell) else _WORD
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
