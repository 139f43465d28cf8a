"""`--format github`: Markdown that shows what the text has, and nothing that somebody's names make of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from infercanary.compare import markdown
from infercanary.compare.commands import compare

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])


class Shown(HTMLParser):
    """The rows of the tables, what is bold, and the other tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.text = self.bold = ""
        self.feed(GITHUB.render(text))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.tags[-1:] == ["strong"] and not self.bold:
            self.bold = data
        if self.tags[-1:] in (["td"], ["th"]) and data != "\n":
            self.rows[-1][-1] += data


def test_it_shows_the_sentence_both_sides_and_the_evidence(journal: Callable[..., str]) -> None:
    old = journal("a", (0.020,) * 4, torch="2.7.0")
    new = journal("b", (0.023,) * 4, torch="2.8.0")
    done = CliRunner().invoke(compare.command, [old, new, "--format", "github"], standalone_mode=False)
    known = CliRunner().invoke(compare.command, [old, new, "--json"], standalone_mode=False)
    answer = json.loads(known.output)
    shown = Shown(done.output)
    assert done.return_value == known.return_value == 1
    assert shown.bold == f"resnet18: {answer['sentence']}" and answer["sentence"].startswith("regressed +")
    latency = next(row for row in shown.rows if row[0] == "latency")
    assert shown.rows[0] == ["", "baseline", "candidate", "change"]
    assert latency[1:3] == ["20.00 ms", "23.01 ms"] and re.fullmatch(
        r"\+1\d\.\d % \[\+[\d.]+, \+[\d.]+\]", latency[3]
    )
    evidence = {row[0]: row[1] for row in shown.rows if len(row) == 2}
    assert evidence["changed"] == "torch 2.7.0 → 2.8.0" and evidence["rests on"].startswith(
        "160 runs of 4 starts"
    )
    assert "medians" not in evidence
    assert {*shown.tags} == {"p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}


def test_each_canary_has_a_part_of_its_own_and_notes_are_last(journal: Callable[..., str]) -> None:
    old = journal("a", (0.020,) * 4, canaries=("one", "two"))
    new = journal("b", (0.020,) * 4, canaries=("one", "two", "three"))
    done = CliRunner().invoke(compare.command, [old, new, "--format", "github"], standalone_mode=False)
    assert [line.split(":")[0] for line in done.output.splitlines() if line.startswith("**")] == [
        "**one",
        "**two",
    ]
    assert done.output.splitlines()[-1].startswith("Note: ") and "three" in done.output.splitlines()[-1]


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=40))
@example(
    "![x](https://example.com/a.png) [link](https://example.com) <img src=x> `code` **bold** ~~no~~ a|b &lt;"
)
@example("# title")
@example("__0__")
@example("search@sha256:12 \\| C:\\|")
@settings(max_examples=150, deadline=None)
def test_any_words_are_shown_as_they_are(words: str) -> None:
    words = " ".join(words.split())
    shown = Shown(f"| {markdown.escaped(words)} | b |\n|---|---|\n")
    assert [cell.replace("\N{ZERO WIDTH SPACE}", "") for cell in shown.rows[0]] == [words, "b"]
    assert {*shown.tags} == {"table", "thead", "tr", "th"}


@pytest.mark.parametrize(
    ("words", "mentions"), [("by @octocat", False), ("@team/x", False), ("search@sha256:ab", True)]
)
def test_nobody_is_mentioned_and_digests_can_be_copied(words: str, mentions: bool) -> None:
    assert ("\N{ZERO WIDTH SPACE}" not in markdown.escaped(words)) is mentions


def test_formats_exclude_each_other() -> None:
    done = CliRunner().invoke(compare.command, ["a", "b", "--json", "--format", "github"])
    assert "--json and --format github: exclude each other; give one of them" in str(done.exception)
