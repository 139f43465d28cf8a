"""Untrusted text at each place of a document, in each renderer: visible, but without an effect."""

import csv
import io
import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from infercanary.pages.html import render_page
from infercanary.pages.junit import render_junit
from infercanary.pages.markdown import render_markdown
from infercanary.pages.table_csv import render_csv
from infercanary.render.json import render_json
from infercanary.render.text import render_texts
from tests.documents import document
from tests.status_pages import filled

TEXTS = {
    "quotes": """a " b ' c " onmouseover="alert(1)" x='""",
    "tags": "<script>alert(1)</script><img src=x onerror=alert(1)></style></title></article>",
    "comments": "<!-- a --> ]]> <![CDATA[ b ]]> <?php ?>",
    "entities": "&lt;b&gt; &amp; &#x3c; &",
    "escapes": "a\x1b[31mred\x1b]0;title\x07\x9b2J",
    "right to left": "a\u202eevil\u2066b\u200b",
    "line ends": "a\0b\r\nc\td\u2028e\ud800",
    "10,000 characters": "x" * 10_000,
    "10,000 signs": "<|" * 5_000,
    "formula": '=HYPERLINK("http://example.com";"a")',
    "formula after blanks": "  +1+cmd|' /C calc'!A0",
    "pipes": "a|b | c \\| d\\",
    "backticks": "`a` ```b",
    "mentions": "@octocat and @team/x",
    "javascript": "javascript:alert(1)",
    "links": "[a](javascript:alert(1)) ![b](http://example.com/b.png) <http://example.com> https://b www.example.com",
    "markdown": "# a **b** __c__ ~~d~~ *e* - f > g",
    "templates": "{{ 7 * 7 }} {% raw %} {# a #} ${x}",
    "password": "postgresql://user:secret@db/x",
}


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.words = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        words = "aria-label", "id", "title"
        self.tags.append((tag, [(name, "" if name in words else value) for name, value in attributes]))

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_data(self, data):
        self.words.append(data.strip())

    def handle_comment(self, data):
        self.tags.append("comment")

    handle_decl = handle_pi = unknown_decl = handle_comment


def html(text):
    page = Tags(render_page(text, [document(text)], [text], [text]))
    return page.tags, page.words


def status_page(text):
    page = Tags(filled(text))
    return page.tags, [word for word in page.words if "infercanary-open" not in word]


def markdown(text):
    comment = render_markdown([document(text)], [text])
    assert "://" not in comment
    assert "www.example" not in comment
    assert "@octocat" not in comment
    page = Tags(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(comment))
    return page.tags, page.words


def junit(text):
    elements = [*ElementTree.fromstring(render_junit([document(text)])).iter()]
    words = [
        word
        for one in elements
        for word in (*one.attrib.values(), *(one.text or "").splitlines(), one.tail or "")
    ]
    return [(one.tag, [*one.attrib]) for one in elements], words


def as_json(text):
    answer = render_json([document(text)], [text])
    assert answer.isascii()
    assert answer.count("\n") == 1
    root = json.loads(answer)

    def strings(value):
        if isinstance(value, (dict, list)):
            for part in value if isinstance(value, list) else (*value, *value.values()):
                yield from strings(part)
        elif isinstance(value, str):
            yield value

    return [*root], [*strings(root)]


def text(text):
    return None, render_texts([document(text)], [text]).splitlines()


def as_csv(text):
    rows = [
        *csv.reader(io.StringIO("".join(render_csv(["a", text], [[text, 1.5]] * 2)), newline=""), strict=True)
    ]
    words = [cell for row in rows for cell in row]
    assert not any(word.lstrip().startswith(("=", "+", "-", "@")) for word in words)
    return [len(row) for row in rows], words


@pytest.mark.parametrize("render", [html, status_page, markdown, junit, as_json, text, as_csv])
@pytest.mark.parametrize("words", TEXTS.values(), ids=TEXTS)
def test_words_are_shown_and_do_nothing(render, words):
    structure, shown = render(words)
    assert structure == render("text")[0]
    lines = [line.replace("\N{ZERO WIDTH SPACE}", "") for words in shown for line in words.splitlines()]
    assert [line for line in lines if not line.isprintable()] == []
    first = words.split()[0][:10]
    if first.isprintable():
        assert any(first in line for line in lines)
    if render in (html, status_page, markdown, junit):
        assert not any("secret" in line for line in lines)
        assert sum(map(len, lines)) < 150_000


LINKS = ("https://example.com/compare/a...b", "http://example.com:8080/?a=1&b=%3C")
NO_LINKS = (
    "javascript:alert(1)", "JavaScript://example.com/%0aalert(1)", "data:text/html,<script>alert(1)</script>",
    "https://example.com/a b", "https://example.com/\u202e", " https://example.com", "https://example.com\n",
    "//example.com", "https://example.com/" + "x" * 3000,
)  # fmt: skip


def test_a_page_links_to_web_addresses_alone():
    for link in (*LINKS, *NO_LINKS):
        tags = Tags(render_page("a", [document(link=link)])).tags
        links = [dict(tag[1]) for tag in tags if tag[0] == "a"]
        assert links == ([{"href": link, "rel": "noopener noreferrer"}] if link in LINKS else []), link


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=40))
@example("__0__ search@sha256:12 \\| C:\\|")
@settings(max_examples=100, deadline=None)
def test_any_words_are_shown_in_markdown_as_they_are(words):
    words = f"a {' '.join(words.split())} z"
    _, shown = markdown(words)
    assert words in [word.replace("\N{ZERO WIDTH SPACE}", "") for word in shown]
