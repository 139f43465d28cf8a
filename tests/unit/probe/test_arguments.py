"""Mistakes in the arguments of a Probe in a server's own process: one line each; and the environment's last word."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.contract.address import listen_place
from infercanary.contract.report import decode
from infercanary.probe import Probe, TorchTarget
from infercanary.probe.duty import DUTY_CAP, INTERVAL
from infercanary.probe.settings import Settings
from infercanary.probe.tags import values


def model(x: object) -> object:
    return x


TARGET = TorchTarget(model, [{"shape": [1]}])
SOME = {"a": TARGET}


@pytest.mark.parametrize(
    ("targets", "arguments", "words"),
    [
        ({"a": model}, {}, ("canaries.a", "function is no target", "wrap a model: TorchTarget")),
        ({"a": 1}, {}, ("canaries.a", "it lacks open, run, values, environment, close")),
        ({}, {}, ("canaries", "give one at least")),
        (TARGET, {}, ("canaries", "give one at least")),
        ({1: TARGET}, {}, ("canaries", "`1` is not a name")),
        ({"a b": TARGET}, {}, ("canaries", "`a b` is not a name")),
        (SOME, {"controls": "no"}, ("Probe: controls", "true or false")),
        (SOME, {"samplers": ["nvml"]}, ("samplers", "give a mapping")),
        (SOME, {"listen": True}, ("Probe: listen", "text or a whole number")),
        (SOME, {"listen": "everywhere"}, ("listen", "'everywhere' is not HOST:PORT", "unix:///path")),
        (SOME, {"executor": 4}, ("executor", "`submit`")),
        (SOME, {"on_hang": "restart"}, ("on_hang", "give a function")),
        (SOME, {"interval_seconds": "10s"}, ("Probe: interval_seconds", "expected a number, got text")),
        (SOME, {"interval_seconds": 0}, ("Probe: interval_seconds", ">= 0.1")),
        (SOME, {"timeout_seconds": float("nan")}, ("Probe: timeout_seconds", "> 0")),
        (SOME, {"open_timeout_seconds": float("inf")}, ("Probe: open_timeout_seconds", "<= 86400")),
        (SOME, {"duty_cap": 1.5}, ("Probe: duty_cap", "<= 1.0")),
        (SOME, {"memory_reserve": -1}, ("Probe: memory_reserve", ">= 0")),
        (SOME, {"interval": 10}, ("Probe", "did you mean `interval_seconds`?")),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(targets: Any, arguments: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        Probe(targets, **arguments)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def test_keywords_and_settings_make_the_same_struct() -> None:
    settings = Settings(interval_seconds=60, samplers={"nvml": False}, listen=9798)
    by_name = Probe(
        SOME, interval_seconds=60, samplers={"nvml": False}, listen=9798, on_hang=ThreadPoolExecutor
    )
    assert by_name.settings == Probe(SOME, settings).settings == settings


@pytest.mark.parametrize("listen", ["9798", "[::]:9798", ":9798"])
def test_a_port_alone_is_every_address(listen: str) -> None:
    assert listen_place(listen) == ("::", 9798)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("INTERVAL_SECONDS", "0", ">= 0.1"),
        ("INTERVAL_SECONDS", "nan", ">= 0.1"),
        ("INTERVAL_SECONDS", "1e9", "<= 86400"),
        ("INTERVAL_SECONDS", "10 s", "leave its unit out"),
        ("DUTY_CAP", "1.01", "<= 1.0"),
        ("DUTY_CAP", "5 %", "0.05 for 5 %"),
        ("BURST", "2 s", "expected true or false"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"INFERCANARY_{name}", value)
    with pytest.raises(UsageError) as caught:
        Probe(SOME)
    assert f"environment: INFERCANARY_{name}" in str(caught.value) and words in str(caught.value)


def test_a_probe_in_a_server_keeps_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERCANARY_INTERVAL_SECONDS", "0.3")
    monkeypatch.setenv("INFERCANARY_DUTY_CAP", "0.9")
    probe = Probe(SOME, listen="127.0.0.1:0", interval_seconds=60, samplers=())
    probe.serve()
    try:
        known = values(decode(probe.report("")).families)
        assert (known[INTERVAL.name][()], known[DUTY_CAP.name][()]) == (0.3, 0.9)
    finally:
        probe.close()
