"""Where an image came from: bounded words of its labels, and a link only to the web."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.judge.model import Generation
from infercanary.judge.origin import NOWHERE, Origin, changed, link

OLD, NEW = "1a2b3c4d5e6f" + "0" * 28, "9f8e7d6c5b4a" + "1" * 28


def labels(revision: str = "", source: str = "", version: str = "") -> dict[str, str]:
    every = {"revision": revision, "source": source, "version": version, "title": "search"}
    return {f"org.opencontainers.image.{name}": value for name, value in every.items() if value}


def of(revision: str = "", source: str = "", version: str = "") -> Origin:
    return Origin.of(labels(revision, source, version))


def test_labels_are_words() -> None:
    found = of(NEW, "https://github.com/acme/search", "1.5")
    assert found == Origin(NEW, "https://github.com/acme/search", "1.5")
    assert found.words == "1.5, 9f8e7d6c5b4a"
    assert Origin.of({"maintainer": "me"}) == NOWHERE and NOWHERE.words == ""
    assert of("x" * 500).revision == "x" * 64
    assert of("a\x1b[2J\u202eb").revision == "a?[2J?b"


@pytest.mark.parametrize(
    "source",
    ["javascript:alert(1)", "git@github.com:acme/search.git", "file:///etc/passwd", "https://", "//host/x", "ftp://h/x",
     "https://h/" + "x" * 300, "https://h/a b", 'https://h/"><script>', "https://h/\nx", "https://\u0435xample.com/",
     "https://[::1/x", "https://h:99999/"],
)  # fmt: skip
def test_a_source_that_is_no_web_address_is_left_out(source: str) -> None:
    assert of(source=source).source == ""


def test_a_password_in_a_source_is_left_out() -> None:
    assert of(source="https://user:token@github.com/acme/search").source == "https://github.com/acme/search"
    assert of(source="http://u@[::1]:8080/x").source == "http://[::1]:8080/x"


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("https://github.com/acme/search", "https://github.com/acme/search/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"),
        ("https://github.com/acme/search.git", "https://github.com/acme/search/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"),
        ("https://gitlab.com/a/b/c/", "https://gitlab.com/a/b/c/-/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"),
        ("https://gitlab.acme.example:8443/a/b/-/tree/main",
         "https://gitlab.acme.example:8443/a/b/-/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"),
        ("https://codeberg.org/acme/search", "https://codeberg.org/acme/search/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"),
        ("https://git.acme.example/search", "https://git.acme.example/search"),
        ("https://notgithub.com/acme/search", "https://notgithub.com/acme/search"),
        ("https://github.com/acme/search/tree/main/images", "https://github.com/acme/search/tree/main/images"),
        ("https://github.com/acme", "https://github.com/acme"),
    ],
)  # fmt: skip
def test_commits_are_linked_where_the_host_is_known_to_compare_them(source: str, address: str) -> None:
    assert link(of(OLD, source), of(NEW, source)) == address


def test_without_two_commits_of_one_source_the_link_is_the_source() -> None:
    here, there = "https://github.com/acme/search", "https://github.com/acme/other"
    for before, after in (
        (of(OLD, there), of(NEW, here)),
        (of("", here), of(NEW, here)),
        (of("main", here), of(NEW, here)),
        (of(NEW, here), of(NEW, here)),
        (NOWHERE, of(NEW, here)),
    ):
        assert link(before, after) == here
    assert link(of(OLD, here), NOWHERE) == ""


def test_what_is_the_same_is_not_said() -> None:
    """A base image's labels are those of all that is built on it."""
    assert changed(of(version="22.04"), of(version="22.04")) == ""
    assert changed(of(OLD, version="1.4"), of(NEW, version="1.5")) == (
        "version 1.4 → 1.5, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a"
    )
    assert changed(of(version="1.4"), of(NEW)) == "version 1.4 → none, revision none → 9f8e7d6c5b4a"
    assert changed(NOWHERE, of(NEW)) == "revision 9f8e7d6c5b4a", (
        "the old one was seen before labels were read"
    )


def test_labels_never_decide_which_image_it_is() -> None:
    def key(origin: Origin) -> str:
        start = Generation(
            service="s", container="c", boot_id="b", started_at=0.0, image_id="sha256:1", origin=origin
        )
        return start.image_key

    assert key(NOWHERE) == key(of(NEW, "https://github.com/acme/search", "1.5"))


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_whatever_the_labels_hold_it_is_short_and_printable(revision: str, source: str, version: str) -> None:
    found = of(revision, source, version)
    words = changed(NOWHERE, found)
    assert words.isprintable() and len(words) < 200
    address = link(found, found)
    assert address == "" or (address.startswith(("http://", "https://")) and len(address) <= 200)
