"""Decides from the columns of a row whether the row's run failed."""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from typing import TypeAlias

import msgspec

from infercanary.compare.cells import plain_number

WORDS = msgspec.yaml.decode(
    files(__package__).joinpath("words.yaml").read_bytes(), type=dict[str, frozenset[str]]
)
"""Words in column names and in cells, grouped by meaning."""

Outcomes: TypeAlias = "tuple[tuple[str, str], ...]"
"""Cells of a row that say how the run ended (:func:`outcome_kind`), as pairs of column name and text."""

# Signs of success or failure in a row, as bits. The meaning of a zero or a word depends on the whole column: 0 is OK in
# gRPC, but a refused connection in HTTP; `miss` is a failure next to `ok`, but not next to `hit`.
FAILED, ZERO, WORD, HTTP, GOOD = 1, 2, 4, 8, 16


@functools.lru_cache(maxsize=4096)
def outcome_kind(name: str) -> str:
    """Return the kind of a column that says how runs ended; "" for other columns.

    The kinds are `success`, `error`, `ended`, `status` and `said`.
    """
    words = words_of(name.rpartition(".")[2]) or words_of(name)
    path = words | words_of(name.rpartition(".")[0]) & WORDS["error"]
    if path & WORDS["no outcome"] or "%" in name:
        return ""
    if words == {"expected", "response"}:
        return "success"
    for kind in ("success", "error", "ended"):
        if path & WORDS[kind]:
            return kind
    if words & WORDS["status"] or (words & WORDS["code"] and words <= WORDS["code"] | WORDS["beside code"]):
        return "status"
    return "said" if words <= WORDS["said"] or words == {"finish", "reason"} else ""


def words_of(name: str) -> set[str]:
    """Return the words of a name in lower case, for example of ``responseCode``, ``exit_code`` or ``Latency (ms)``."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@functools.lru_cache(maxsize=4096)  # cached, because a table has few different outcomes
def signs(cells: Outcomes) -> int:
    """Return the signs of success or failure in the cells of a table row, as bits."""
    found = 0
    for name, cell in cells:
        kind, cell = outcome_kind(name), cell.strip().lower()
        is_failed = False
        if kind == "success":
            if cell in WORDS["yes"]:  # the column `success` decides: the tool may expect status 404
                return found & (HTTP | GOOD)
            is_failed = cell in WORDS["no"]
        elif kind == "status":
            found |= 0 if found & FAILED else _status(name, cell)
        elif kind == "said":  # other texts may be computed results
            is_failed = set() < words_of(cell) <= WORDS["bad"]
        elif kind == "ended":  # a number in a column `timeout` is a time limit
            is_failed = cell in ("true", "yes") or (cell == "1" and "timeout" not in words_of(name))
        elif cell not in WORDS["nothing"]:
            number = plain_number(cell)
            is_failed = number is None or (number != 0 and number.is_integer())
        found |= FAILED * is_failed
    return found


def _status(name: str, cell: str) -> int:
    cell = re.sub(r"^https?(/[\d.]+)?[ :_-]+(?=\d)", "", cell.replace("xx", "00"))
    number = plain_number(cell.partition(" ")[0])
    if number is None:
        words = words_of(cell)
        if words & WORDS["bad"]:
            return FAILED
        return GOOD if words & WORDS["good"] else WORD * bool(words)
    if words_of(name) & {"exit", "exitcode"}:
        return FAILED * (number != 0)
    if number == 101 or 200 <= number < 600:
        return HTTP | FAILED * (number >= 400)
    return ZERO if number == 0 else FAILED * (-256 <= number < 200)  # such as 137 (killed process)


def failures(seen: int) -> int:
    """Return the signs that mean a failure in this file.

    Args:
        seen: All signs in the file.
    """
    return FAILED | ZERO * bool(seen & HTTP) | WORD * bool(seen & GOOD)
