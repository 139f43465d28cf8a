"""Format of a journal: `compare` reads everything that a probe writes."""

import json

import msgspec
import pytest

from infercanary.contract.journal import MARK, JournalEntry, decode, encode, environment_id
from infercanary.contract.report import Run
from tests.scenarios import cases

RUN = Run(1, "c", 100.0, 100.5, "ok", (0.01, 0.011), {"compute": 0.01}, ("stalled",))


@cases(
    [
        JournalEntry("boot", "id", run=RUN),
        JournalEntry("boot", "id", components={"torch": "2.13"}, outputs={"c": (1.0, 2.0)}),
    ],
)
def test_a_line_is_read_as_it_was_written(entry):
    line = encode(entry)
    assert decode(line) == entry
    assert line.startswith(MARK)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert None not in json.loads(line).values()  # the journal omits missing values


@cases(
    [
        (b'{"boot_id":"a"}', msgspec.ValidationError),
        (b"[1]", msgspec.ValidationError),
        (b'{"boot_id":"a","environ', msgspec.DecodeError),
        (b"\0\0", msgspec.DecodeError),
        (b'{"boot_id":"a","environment":"b","x":' + 100_000 * b"[", msgspec.DecodeError),
    ],
)
def test_invalid_lines(line, error):
    with pytest.raises(error) as caught:
        decode(line)
    assert isinstance(caught.value, msgspec.DecodeError)


def test_the_id_is_of_the_components_not_of_their_order():
    assert environment_id({"a": "1", "b": "2"}) == environment_id({"b": "2", "a": "1"})
    assert environment_id({"a": "1", "b": "2"}) != environment_id({"a": "1", "b": "3"})
