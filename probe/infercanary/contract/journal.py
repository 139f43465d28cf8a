"""Journal: a file of JSON lines, one for each run and one for each environment of the runs.

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
    """One line: a run, or the components of an environment.

    A run names its environment by the id ``environment``. An environment's line also contains the known fingerprints
    of reference outputs, by canary.
    """

    boot_id: str
    environment: str
    run: Run | None = None
    components: dict[str, str] | None = None
    outputs: dict[str, tuple[float, ...]] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalEntry)


def encode(entry: JournalEntry) -> bytes:
    return _encoder.encode(entry) + b"\n"


def decode(line: bytes) -> JournalEntry:
    """Decode a line, with or without a line end. The caller must check the numbers of a run (:mod:`.bounds`).

    Raises:
        msgspec.ValidationError: The line is JSON, but not an entry.
        msgspec.DecodeError: The line is not JSON: a crash truncated the line, or the file is not a journal.
    """
    try:
        entry = _decoder.decode(line)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec raises UnicodeDecodeError here instead of DecodeError
        raise msgspec.DecodeError("a text is not UTF-8") from None
    return entry if entry.run is None else msgspec.structs.replace(entry, run=with_current_tags(entry.run))


def environment_id(components: Mapping[str, str]) -> str:
    """Return a short id of an environment. The order of the components does not matter."""
    text = "\n".join(f"{component}\t{value}" for component, value in sorted(components.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
