from typing import Any

import pytest
from faulty import Faulty
from watching import until


@pytest.fixture
def started():
    from infercanary.probe import Probe
    from infercanary.probe.samplers import registered

    probes: list[Probe] = []
    targets: list[Any] = []

    def start(canaries, **settings):
        quick: dict[str, Any] = {
            "listen": "127.0.0.1:0", "interval_seconds": 0.1, "duty_cap": 1.0, "controls": False,
            "samplers": dict.fromkeys(registered(), False),
        }  # fmt: skip
        probe = Probe(canaries, **(quick | settings))
        probes.append(probe)
        targets.extend(canaries.values())
        probe.start()
        if settings.get("listen", "").startswith(("unix:", "127.0.0.1:0")) or "listen" not in settings:
            until(lambda: probe.address, "the probe does not listen")
        return probe

    yield start
    for target in targets:
        if hasattr(target, "go_on"):
            target.go_on.set()
    for probe in probes:
        probe.stop()


@pytest.fixture
def server(monkeypatch):
    """A server with faults on request. At the end, close the connections that the test's targets keep."""
    from infercanary.probe.targets.wire.server import Server

    opened: list[Server] = []
    really = Server.open

    def open_(self):
        opened.append(self)
        really(self)

    monkeypatch.setattr(Server, "open", open_)
    with Faulty() as faulty:
        yield faulty
        for each in opened:
            each.close()
