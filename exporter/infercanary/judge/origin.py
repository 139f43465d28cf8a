"""Origin of an image from its labels, only for display: version, revision and a link.

Labels are untrusted: anyone who built the image or its base image may have written them. So a label never identifies
an image, its text is cut and made printable, and only http and https addresses become links.
https://github.com/opencontainers/image-spec/blob/main/annotations.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import msgspec

from infercanary.contract.text import printable

_REVISION, _SOURCE, _VERSION = (
    f"org.opencontainers.image.{name}" for name in ("revision", "source", "version")
)
_MOST, _MOST_URL = 64, 200
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_SHORT = 12  # displayed digits of a commit's hash
_COMPARES: Mapping[str, str] = {
    "github": "{repository}/compare/{old}...{new}",
    "gitlab": "{repository}/-/compare/{old}...{new}",
    "codeberg": "{repository}/compare/{old}...{new}",
}
"""URL of the page that compares two commits, by code-hosting software. The software is recognized by the first or the
second-to-last part of the host's name, such as in ``gitlab.example.com`` or ``github.com``.
"""


class Origin(msgspec.Struct, frozen=True):
    """Origin of one image; a field is empty if the image lacks the label."""

    revision: str = ""
    source: str = ""
    """An http or https URL."""
    version: str = ""

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Origin:
        """Read the origin from an image's labels. Long values are cut. A source must be a web address."""
        revision, version = (
            printable(labels.get(label, "").strip(), _MOST) for label in (_REVISION, _VERSION)
        )
        return cls(revision, _web_address(labels.get(_SOURCE, "").strip()), version)

    @property
    def words(self) -> str:
        """Return version and revision, such as ``1.5, 9f8e7d6c5b4a``; empty if both are unknown."""
        return ", ".join(filter(None, (self.version, _short(self.revision))))


NOWHERE = Origin()


def changed(before: Origin, after: Origin) -> str:
    """Return the difference of two origins, such as ``version 1.4 → 1.5, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a``.

    Without labels of the old image, the new version and revision are returned. The text is empty if both origins are
    the same, such as the origin of a common base image.
    """
    each = (
        ("version", before.version, after.version),
        ("revision", _short(before.revision), _short(after.revision)),
    )
    if before == NOWHERE:
        return ", ".join(f"{name} {new}" for name, _, new in each if new)
    return ", ".join(f"{name} {old or 'none'} → {new or 'none'}" for name, old, new in each if old != new)


def link(before: Origin, after: Origin) -> str:
    """Return the URL of a page with the commits between two images.

    Returns:
        The new image's source if there is no such page; empty if the source is also unknown.
    """
    commits = [_COMMIT.fullmatch(origin.revision.lower()) for origin in (before, after)]
    if (
        not after.source
        or before.source != after.source
        or None in commits
        or before.revision == after.revision
    ):
        return after.source
    parts = urlsplit(after.source)
    names = (parts.hostname or "").split(".")
    template = next((_COMPARES[name] for name in (names[0], *names[-2:-1]) if name in _COMPARES), "")
    path = parts.path.partition("/-/")[0].rstrip("/").removesuffix(".git")
    owner_and_name = path.count("/") == 2 if "/-/" not in template else path.count("/") >= 2
    if not template or not owner_and_name:
        return after.source
    repository = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    old, new = (_short(origin.revision.lower()) for origin in (before, after))
    return template.format(repository=repository, old=old, new=new)


def _short(revision: str) -> str:
    return revision[:_SHORT] if _COMMIT.fullmatch(revision.lower()) else revision


def _web_address(text: str) -> str:
    """Return the text if it is an http or https URL without user name and password, otherwise an empty string."""
    if (
        len(text) > _MOST_URL
        or not text.isascii()
        or not text.isprintable()
        or re.search(r"[\s\"'<>\\^`{|}]", text)
    ):
        return ""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not host:
        return ""
    place = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, f"{place}:{port}" if port else place, *parts[2:]))
