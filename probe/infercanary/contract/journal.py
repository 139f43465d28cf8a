"""The format of a journal: a line of JSON for each run, and one for each environment that runs name.

A probe writes it, so that runs survive a crash; ``infercanary compare`` and ``scan`` read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from infercanary.contract.report import Run, with_current_tags

MARK = b'{"boot_id"'
"""The beginning of every line."""


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a run, or the components of the environment whose id ``environment`` is.

    Beside the components are the fingerprints of this boot's reference outputs, by canary, as far as they are known.
    """

    boot_id: str
    environment: str
    run: Run | None = None
    components: dict[str, str] | None = None
    outputs: dict[str, tuple[float, ...]] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalEntry)


def encode(entry: JournalEntry) -> bytes:
    """The line of ``entry``, with its line end.

    Args:
        entry: A run, or the components of an environment.
    """
    return _encoder.encode(entry) + b"\n"


def decode(line: bytes) -> JournalEntry:
    """The entry in ``line``.

    Args:
        line: With or without its line end.

    Returns:
        The entry; its run's numbers are as they were written, unchecked.

    Raises:
        msgspec.ValidationError: It is JSON, and no entry.
        msgspec.DecodeError: It is no JSON: a crash tore it, or it is of another file.
    """
    try:
        entry = _decoder.decode(line)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec checks texts only as it makes them
        raise msgspec.DecodeError("a text that is not UTF-8") from None
    return entry if entry.run is None else msgspec.structs.replace(entry, run=with_current_tags(entry.run))


def environment_id(components: Mapping[str, str]) -> str:
    """A short name for an environment: the same for the same components.

    Args:
        components: Component → its value; the order does not matter.
    """
    text = "\n".join(f"{component}\t{value}" for component, value in sorted(components.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
