"""The environment's pace: what it may be, and that every probe keeps to it."""

from __future__ import annotations

import pytest

from infercanary.command.settings import UsageError
from infercanary.contract.report import decode
from infercanary.probe import TorchTarget
from infercanary.probe.duty import DUTY_CAP, INTERVAL
from infercanary.probe.loop import Probe
from infercanary.probe.pace import pace
from infercanary.probe.tags import values

SOME = {"some": TorchTarget("module:factory", [{"shape": [1]}])}


def test_without_it_what_was_given_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERCANARY_INTERVAL_SECONDS", raising=False)
    monkeypatch.setenv("INFERCANARY_DUTY_CAP", "")
    assert pace(10.0, 0.01) == (10.0, 0.01)


def test_it_overrides_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERCANARY_INTERVAL_SECONDS", "0.5")
    assert pace(10.0, 0.01) == (0.5, 0.01)
    monkeypatch.setenv("INFERCANARY_DUTY_CAP", "1")
    assert pace(10.0, 0.01) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("INFERCANARY_INTERVAL_SECONDS", "0", "give seconds from 0.1 to 86400"),
        ("INFERCANARY_INTERVAL_SECONDS", "-1", "give seconds from 0.1 to 86400"),
        ("INFERCANARY_INTERVAL_SECONDS", "nan", "give seconds from 0.1 to 86400"),
        ("INFERCANARY_INTERVAL_SECONDS", "inf", "give seconds from 0.1 to 86400"),
        ("INFERCANARY_INTERVAL_SECONDS", "1e9", "give seconds from 0.1 to 86400"),
        ("INFERCANARY_INTERVAL_SECONDS", "10 s", "give seconds, such as 10, or leave it out"),
        ("INFERCANARY_DUTY_CAP", "0", "give a share above 0, at most 1"),
        ("INFERCANARY_DUTY_CAP", "1.01", "give a share above 0, at most 1"),
        ("INFERCANARY_DUTY_CAP", "nan", "give a share above 0, at most 1"),
        ("INFERCANARY_DUTY_CAP", "5 %", "give a share, such as 0.05 for 5 %, or leave it out"),
    ],
)
def test_a_mistake_names_the_variable_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, remedy: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        Probe(SOME)
    assert str(caught.value) == f"environment: {name}={value}: {remedy}"


def test_a_probe_in_a_server_keeps_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERCANARY_INTERVAL_SECONDS", "0.3")
    monkeypatch.setenv("INFERCANARY_DUTY_CAP", "0.9")
    probe = Probe(SOME, listen="127.0.0.1:0", interval_seconds=60, samplers=())
    probe.serve()
    try:
        known = values(decode(probe.report("")).families)
        assert known[INTERVAL.name][()] == 0.3
        assert known[DUTY_CAP.name][()] == 0.9
    finally:
        probe.close()
