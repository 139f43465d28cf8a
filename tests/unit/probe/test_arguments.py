"""Mistakes in the arguments of a Probe in a server's own process: one line each, as of the same mistake in YAML."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe import Probe, TorchTarget
from infercanary.probe.arguments import address


def model(x: object) -> object:
    return x


TARGET = TorchTarget(model, [{"shape": [1]}])


@pytest.mark.parametrize(
    ("targets", "arguments", "line"),
    [
        (
            {"a": model},
            {},
            "canaries.a: function is a model, not a target; wrap it: TorchTarget(model, inputs)",
        ),
        (
            {"a": 1},
            {},
            "canaries.a: int is no target: it lacks the methods open, run, values, environment, close",
        ),
        ({"a": TARGET}, {"controls": "no"}, "controls: `no` is neither True nor False"),
        (
            {"a": TARGET},
            {"samplers": ["nvml"]},
            'samplers: give a mapping, such as {"nvml": False}; those not named keep their default',
        ),
        ({}, {}, "canaries: there are none; give one at least, such as a TorchTarget"),
        (TARGET, {}, 'canaries: give a mapping, such as {"resnet18": TorchTarget(model, inputs)}'),
        ({1: TARGET}, {}, "canaries: `1` is not a name of letters, digits, `_`, `.` and `-` (64 at most)"),
        ({"a": TARGET}, {"listen": True}, "listen: `True` is neither host:port ([::]:9798) nor unix:///path"),
        (
            {"a": TARGET},
            {"executor": 4},
            "executor: `4` is no pool; give the server's own, such as ThreadPoolExecutor(4), or leave it out",
        ),
        (
            {"a": TARGET},
            {"on_hang": ThreadPoolExecutor},
            None,
        ),
        (
            {"a": TARGET},
            {"on_hang": "restart"},
            "on_hang: `restart` cannot be called; give a function that returns a pool or None",
        ),
        (
            {"a": TARGET},
            {"interval_seconds": "10s"},
            "interval_seconds: `10s` is not a number; give seconds, such as 10",
        ),
        ({"a": TARGET}, {"duty_cap": "5 %"}, "duty_cap: `5 %` is not a number; give a share, such as 0.05 for 5 %"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(targets: Any, arguments: dict[str, Any], line: str | None) -> None:
    if line is None:
        Probe(targets, **arguments)
        return
    with pytest.raises(UsageError) as caught:
        Probe(targets, **arguments)
    assert str(caught.value) == line


@pytest.mark.parametrize("listen", [9798, "9798", "[::]:9798"])
def test_a_port_alone_is_every_address(listen: str | int) -> None:
    assert address(listen) == "[::]:9798"
