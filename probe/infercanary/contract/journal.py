"""Journal: a file with a JSON line for each run and for each environment of these runs.

A probe writes a journal, so that runs survive a crash. ``infercanary compare`` and ``scan`` read journals.
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

    An environment's line also has the fingerprints of reference outputs known so far, by canary.
    """

    boot_id: str
    environment: str
    run: Run | None = None
    components: dict[str, str] | None = None
    outputs: dict[str, tuple[float, ...]] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalEntry)


def encode(entry: JournalEntry) -> bytes:
    """Encode an entry as a line, including the line end."""
    return _encoder.encode(entry) + b"\n"


def decode(line: bytes) -> JournalEntry:
    """Decode a line, with or without a line end. The numbers of a run are not checked.

    Raises:
        msgspec.ValidationError: The line is JSON, but not an entry.
        msgspec.DecodeError: The line is not JSON: it was truncated by a crash, or the file is not a journal.
    """
    try:
        entry = _decoder.decode(line)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec does not turn this error into a DecodeError
        raise msgspec.DecodeError("a text is not UTF-8") from None
    return entry if entry.run is None else msgspec.structs.replace(entry, run=with_current_tags(entry.run))


def environment_id(components: Mapping[str, str]) -> str:
    """Return a short id of an environment. The id does not depend on the order of the components."""
    text = "\n".join(f"{component}\t{value}" for component, value in sorted(components.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
