"""Tables of scenarios as text: each row is one line."""

import inspect
import re
from contextlib import contextmanager

import pytest
import yaml

from infercanary.command.settings import UsageError


def cases(rows, **options):
    """Run a test once for each row of a list or of a table of :func:`scenarios`. Its cells are the first parameters."""
    rows = scenarios(rows) if isinstance(rows, str) else [*rows]
    first = getattr(rows[0], "values", rows[0])

    def parametrized(test):
        names = [*inspect.signature(test).parameters][: len(first) if isinstance(first, (tuple, list)) else 1]
        return pytest.mark.parametrize(",".join(names), rows, **options)(test)

    return parametrized


def scenarios(text):
    r"""Return the rows of a table. ` | ` separates its cells, and ``\n`` in a cell is a line break."""
    rows = [line for line in text.splitlines() if line.strip()]
    return [tuple(_unescaped(cell.strip(" ")) for cell in re.split(r" \|(?= |$)", row)) for row in rows]


def named(text):
    """Return the rows of a table whose first cell is the name of the row."""
    return [pytest.param(*cells, id=name) for name, *cells in scenarios(text)]


def typed(text):
    """Return the rows of a table whose cells are YAML: numbers, lists and mappings; ``~`` is None."""
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(yaml.safe_load(cell) for cell in re.split(r" +\|(?: +|$)", row.strip())) for row in rows]


def mistakes(text):
    """Return the rows of a table: settings in YAML, and words that the error message must contain."""
    return [(yaml.safe_load(settings), words) for settings, *words in scenarios(text)]


@contextmanager
def refused(words):
    """Expect a user's mistake, whose message is one line with these words."""
    with pytest.raises(UsageError) as caught:
        yield caught
    line = str(caught.value)
    assert "\n" not in line
    assert [word for word in words if word not in line] == [], line


def _unescaped(cell):
    return cell.encode("latin-1", "backslashreplace").decode("unicode_escape")
