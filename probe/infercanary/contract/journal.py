"""Journal: a line of JSON for each run, and one for each environment that runs name.

A probe writes it, so that runs survive a crash; ``infercanary compare`` and ``scan`` read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from infercanary.contract.report import Run, with_current_tags

MARK = b'{"boot_id"'
"""Beginning of every line."""


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a run, or the components of the environment with the id ``environment``.

    An environment's line also has the fingerprints of this boot's reference outputs, by canary, as far as known.
    """

    boot_id: str
    environment: str
    run: Run | None = None
    components: dict[str, str] | None = None
    outputs: dict[str, tuple[float, ...]] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalEntry)


def encode(entry: JournalEntry) -> bytes:
    """Encode an entry as a line, with its line end."""
    return _encoder.encode(entry) + b"\n"


def decode(line: bytes) -> JournalEntry:
    """Decode a line, with or without its line end. The numbers of a run are not checked.

    Raises:
        msgspec.ValidationError: It is JSON, but no entry.
        msgspec.DecodeError: It is no JSON: truncated by a crash, or of another file.
    """
    try:
        entry = _decoder.decode(line)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec checks UTF-8 only when it makes the text
        raise msgspec.DecodeError("a text that is not UTF-8") from None
    return entry if entry.run is None else msgspec.structs.replace(entry, run=with_current_tags(entry.run))


def environment_id(components: Mapping[str, str]) -> str:
    """Return a short id of an environment: the same for the same components in any order."""
    text = "\n".join(f"{component}\t{value}" for component, value in sorted(components.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
