"""Each mistake in a Probe's arguments gives one line; environment variables override arguments."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.contract.report import decode
from infercanary.probe import Probe, TorchTarget
from infercanary.probe.duty import DUTY_CAP, INTERVAL
from infercanary.probe.settings import Settings
from infercanary.probe.tags import values
from tests.scenarios import mistakes, refused


def model(x):
    return x


TARGET = TorchTarget(model, [{"shape": [1]}])
SOME = {"a": TARGET}


MISTAKES = """
controls: "no" | Probe: controls | true or false
samplers: [nvml] | Probe: samplers | expected a mapping, got a list
listen: true | Probe: listen | text or a whole number
listen: everywhere | listen | 'everywhere' is not HOST:PORT | unix:///path
interval_seconds: 10s | Probe: interval_seconds | expected a number, got text
interval_seconds: 0 | Probe: interval_seconds | >= 0.1
timeout_seconds: .nan | Probe: timeout_seconds | > 0
open_timeout_seconds: .inf | Probe: open_timeout_seconds | <= 86400
duty_cap: 1.5 | Probe: duty_cap | <= 1.0
memory_reserve: -1 | Probe: memory_reserve | >= 0
device_memory_reserve: -1 | Probe: device_memory_reserve | >= 0
interval: 10 | Probe | did you mean `interval_seconds`?
INFERCANARY_INTERVAL_SECONDS: "0" | environment: INFERCANARY_INTERVAL_SECONDS | >= 0.1
INFERCANARY_INTERVAL_SECONDS: nan | environment: INFERCANARY_INTERVAL_SECONDS | >= 0.1
INFERCANARY_INTERVAL_SECONDS: "1e9" | environment: INFERCANARY_INTERVAL_SECONDS | <= 86400
INFERCANARY_INTERVAL_SECONDS: 10 s | environment: INFERCANARY_INTERVAL_SECONDS | leave the unit out
INFERCANARY_DUTY_CAP: "1.01" | environment: INFERCANARY_DUTY_CAP | <= 1.0
INFERCANARY_DUTY_CAP: 5 % | environment: INFERCANARY_DUTY_CAP | 0.05 for 5 %
INFERCANARY_BURST: 2 s | environment: INFERCANARY_BURST | expected true or false
"""


@pytest.mark.parametrize(("argument", "words"), mistakes(MISTAKES))
def test_a_mistake_is_one_line(monkeypatch, argument, words):
    [(name, value)] = argument.items()
    if name.isupper():
        monkeypatch.setenv(name, value)
    with refused(words):
        Probe(SOME, **({} if name.isupper() else {name: value}))


NO_CANARIES: list[tuple[Any, str]] = [
    ({"a": model}, "canaries.a: function is not a target: open, .*TorchTarget.*OnnxTarget"),
    (
        {"a": 1},
        "canaries.a: int is not a target: open, run, values, environment, close missing; .*OnnxTarget",
    ),
    ({}, "canaries: give at least one canary"),
    (TARGET, "canaries: give at least one canary"),
    ({1: TARGET}, "canaries: `1` is not a name"),
    ({"a b": TARGET}, "canaries: `a b` is not a name"),
]


@pytest.mark.parametrize(("targets", "words"), NO_CANARIES)
def test_an_invalid_canary_is_refused(targets, words):
    with pytest.raises(UsageError, match=words):
        Probe(targets)


def test_keywords_and_settings_make_the_same_struct():
    settings = Settings(interval_seconds=60, samplers={"nvml": False}, listen=9798)
    by_name = Probe(
        SOME, interval_seconds=60, samplers={"nvml": False}, listen=9798, on_hang=ThreadPoolExecutor
    )
    assert by_name.settings == Probe(SOME, settings).settings == settings


def test_a_probe_in_a_server_keeps_to_the_environment(monkeypatch):
    monkeypatch.setenv("INFERCANARY_INTERVAL_SECONDS", "0.3")
    monkeypatch.setenv("INFERCANARY_DUTY_CAP", "0.9")
    probe = Probe(SOME, listen="127.0.0.1:0", interval_seconds=60)
    probe.serve()
    try:
        known = values(decode(probe.report("")).families)
        assert (known[INTERVAL.name][()], known[DUTY_CAP.name][()]) == (0.3, 0.9)
    finally:
        probe.close()
