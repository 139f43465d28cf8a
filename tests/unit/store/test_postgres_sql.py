"""The SQL is what distributed engines with PostgreSQL's protocol have too, and all of it is in one module."""

from __future__ import annotations

import re
from pathlib import Path

from infercanary.store.postgres import sql

STATEMENTS = {
    "CREATE TABLE", "CREATE INDEX", "SELECT", "INSERT INTO", "UPDATE", "DELETE FROM", "WITH",
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
}  # fmt: skip
FUNCTIONS = {"any", "coalesce", "exists", "extract", "greatest", "length", "max", "now", "unnest"}
WORDS = {  # before a parenthesis, and no function
    "and", "as", "conflict", "from", "in", "key", "mine", "new", "known", "not", "values", "where", "references",
    "on", "join", "generation", "series", "sample", "document", "finding", "lease", "environment",
    "schema_version", "select", "set", "0",
}  # fmt: skip
FORBIDDEN = (
    "advisory", "listen", "notify", "trigger", "serial", "create sequence", "nextval", "procedure", "returns",
    "temp ", "lateral", "jsonb", "copy ", "cursor", "partition", "alter ", "lock table", "truncate", "drop table",
    "clock_timestamp",
)  # fmt: skip


def statements() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in vars(sql).items():
        if isinstance(value, str) and name.isupper():
            found[name] = value
        elif isinstance(value, tuple) and name.isupper():
            parts = [s for step in value for s in ((step,) if isinstance(step, str) else step)]
            found |= {f"{name} {number}": part for number, part in enumerate(parts)}
    return found


def test_only_these_statements_and_functions_are_used() -> None:
    found = statements()
    assert len(found) > 50
    for name, text in found.items():
        begin = " ".join(text.split())
        assert any(begin.startswith(known) for known in STATEMENTS), name
        assert ";" not in text, f"{name}: two statements"
        called = {word.lower() for word in re.findall(r"(\w+)\s*\(", re.sub(r"%\(\w+\)s", "?", text))}
        assert called <= FUNCTIONS | WORDS, (name, called - FUNCTIONS - WORDS)
        assert not [word for word in FORBIDDEN if word in text.lower()], name


def test_every_key_and_every_condition_begins_with_the_service() -> None:
    for name, text in statements().items():
        for key in re.findall(r"PRIMARY KEY \(([^)]*)\)", text):
            assert key.startswith("service"), name
        table = re.search(
            r"(?:UPDATE|DELETE FROM|FROM) (generation|series|sample|document|finding|lease)\b", text
        )
        of_all = {
            "CANARIES",
            "LAST_RUNS",
            "SERVICES",
            "TAUGHT",
        }  # of a host or of all services: rare, and said in docs/fleet.md
        if table and name not in of_all:
            assert "service = " in text, name


def test_there_is_no_sql_beside_the_module() -> None:
    folder = Path(sql.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "sql.py":
            found = re.findall(
                r'"[^"]*\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE)\s[^"]*"', path.read_text()
            )
            assert not found, f"{path.name}: {found}"
