from __future__ import annotations

import re

from infercanary.compare.colophon import colophon
from infercanary.judge.policy import FILES


def test_a_report_says_when_by_what_and_by_which_numbers() -> None:
    made, command, units, numbers = colophon(FILES, ["/usr/bin/infercanary", "compare", "old runs", "new"])
    assert re.fullmatch(r"InferCanary \S+, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", made)
    assert command == "infercanary compare 'old runs' new"
    assert "+5 % is slower" in units
    assert numbers.startswith(
        "A change is 3 % or more, with an interval clear of ±1 %; "
        f"intervals have {100 * FILES.decide.confidence:g} % confidence"
    )


def test_what_may_be_a_secret_is_not_passed_on() -> None:
    given = [
        "infercanary",
        "ab",
        "--both",
        "env.TOKEN=a b=c",
        "--b=env.KEY=x\nyz",
        "--a",
        "env.HOME",
        "one",
        "two",
    ]
    assert (
        colophon(None, given)[1] == "infercanary ab --both 'env.TOKEN=…' '--b=env.KEY=…' --a env.HOME one two"
    )


def test_a_notebook_has_no_command() -> None:
    assert len(colophon(None, ["/usr/lib/ipykernel_launcher.py", "-f", "kernel.json"])) == 2
