"""What is no report is said to be none, whatever it is."""

from __future__ import annotations

import pytest

from infercanary.client.fetch import PollError, read
from infercanary.client.limits import Limits
from infercanary.contract.report import Report, Run, encode

WHOLE = encode(
    Report(1, "boot", 1.0, "c", 0, (), {"torch": "2.13"}, (Run(1, "resnet18", 1.0, 1.0, "ok", (0.1,)),))
)


@pytest.mark.parametrize("text", [b"resnet18", b"torch", b"2.13"])
def test_a_report_with_a_text_that_is_not_utf_8(text: bytes) -> None:
    assert text in WHOLE
    with pytest.raises(PollError, match="not a report: a text that is not UTF-8") as raised:
        read(WHOLE.replace(text, text[:-1] + b"\xff"), Limits())
    assert raised.value.reason == "malformed"


def test_a_report_that_is_nested_for_ever() -> None:
    with pytest.raises(PollError, match="nested too deeply"):
        read(WHOLE[:-1] + b',"x":' + b"[" * 100_000, Limits())
