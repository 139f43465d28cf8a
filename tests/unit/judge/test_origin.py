"""Origin of an image: limited text from labels, and links only to the web (http and https)."""

from hypothesis import given
from hypothesis import strategies as st

from infercanary.judge.origin import NOWHERE, Origin, changed, link
from tests.factories import start
from tests.scenarios import cases, scenarios

OLD, NEW = "1a2b3c4d5e6f" + "0" * 28, "9f8e7d6c5b4a" + "1" * 28
RANGE = "1a2b3c4d5e6f...9f8e7d6c5b4a"
HERE, THERE = "https://github.com/acme/search", "https://github.com/acme/other"


def of(revision="", source="", version=""):
    every = {"revision": revision, "source": source, "version": version, "title": "search"}
    return Origin.of({f"org.opencontainers.image.{name}": value for name, value in every.items() if value})


def test_labels_are_words():
    found = of(NEW, HERE, "1.5")
    assert found == Origin(NEW, HERE, "1.5")
    assert found.words == "1.5, 9f8e7d6c5b4a"
    assert Origin.of({"maintainer": "me"}) == NOWHERE
    assert NOWHERE.words == ""
    assert of("x" * 500).revision == "x" * 64
    assert of("a\x1b[2J\u202eb").revision == "a?[2J?b"
    # labels must not affect the identity
    assert start().generation.image_key == start().reporting(origin=found).generation.image_key


SOURCES = r"""
javascript:alert(1)            |
git@github.com:acme/search.git |
file:///etc/passwd             |
https://                       |
//host/x                       |
https://h/a b                  |
https://h/"><script>           |
https://h/\nx                  |
https://\u0435xample.com/      |
https://[::1/x                 |
https://h:99999/               |
https://user:token@github.com/acme/search | https://github.com/acme/search
http://u@[::1]:8080/x          | http://[::1]:8080/x
"""


@cases([("https://h/" + "x" * 300, ""), *scenarios(SOURCES)])
def test_a_source_is_a_web_address_without_a_password(source, kept):
    assert of(source=source).source == kept


LINKED = """
https://github.com/acme/search     | https://github.com/acme/search/compare/RANGE
https://github.com/acme/search.git | https://github.com/acme/search/compare/RANGE
https://gitlab.com/a/b/c/          | https://gitlab.com/a/b/c/-/compare/RANGE
https://gitlab.acme.example:8443/a/b/-/tree/main | https://gitlab.acme.example:8443/a/b/-/compare/RANGE
https://codeberg.org/acme/search   | https://codeberg.org/acme/search/compare/RANGE
https://git.acme.example/search    |
https://notgithub.com/acme/search  |
https://github.com/acme/search/tree/main/images |
https://github.com/acme            |
"""
"""Source | link; without a link to the commits, the source itself is linked."""


@cases(LINKED)
def test_commits_are_linked_where_the_host_is_known_to_compare_them(source, address):
    assert link(of(OLD, source), of(NEW, source)) == (address.replace("RANGE", RANGE) or source)


@cases([of(OLD, THERE), of("", HERE), of("main", HERE), of(NEW, HERE), NOWHERE])
def test_without_two_commits_of_one_source_the_link_is_the_source(before):
    assert link(before, of(NEW, HERE)) == HERE
    assert link(before, NOWHERE) == ""


@cases(
    [
        # labels of a base image are equal in all images built on it
        (of(version="22.04"), of(version="22.04"), ""),
        (
            of(OLD, version="1.4"),
            of(NEW, version="1.5"),
            "version 1.4 → 1.5, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a",
        ),
        (of(version="1.4"), of(NEW), "version 1.4 → none, revision none → 9f8e7d6c5b4a"),
        (NOWHERE, of(NEW), "revision 9f8e7d6c5b4a"),  # the old image was seen before labels were read
    ],
)
def test_unchanged_labels_are_left_out(before, after, words):
    assert changed(before, after) == words


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_whatever_the_labels_hold_it_is_short_and_printable(revision, source, version):
    found = of(revision, source, version)
    words, address = changed(NOWHERE, found), link(found, found)
    assert words.isprintable()
    assert len(words) < 200
    assert address == "" or (address.startswith(("http://", "https://")) and len(address) <= 200)
