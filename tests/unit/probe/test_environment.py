"""The environment fingerprint."""

from __future__ import annotations

import platform
from importlib import metadata

import pytest

from infercanary.probe.environment import fingerprint


def test_the_components() -> None:
    found = fingerprint({"torch": "2.13.0"})
    assert found["python"] == platform.python_version()
    assert found["kernel"] == platform.release()
    assert found["infercanary"] == metadata.version("infercanary")
    assert found["torch"] == "2.13.0"
    assert list(found) == sorted(found)
    assert {"libc", "os", "architecture", "cpu_model", "gil", "python_implementation"} <= found.keys()


def test_only_known_variables_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment holds secrets."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    found = fingerprint({})
    assert found["env_OMP_NUM_THREADS"] == "3"
    assert "hunter2" not in str(found)


def test_values_are_short_and_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter refuses the whole family for one label value that is not."""
    monkeypatch.setenv("LD_PRELOAD", "/lib/\udcff\n\x07x.so")
    found = fingerprint({"long": "x" * 1000, "wide": "模" * 1000, "none": None})  # type: ignore[dict-item]
    assert found["env_LD_PRELOAD"] == "/lib/???x.so"
    assert len(found["long"]) == 200
    assert found["wide"] == "模" * 66, "the exporter counts bytes"
    assert found["none"] == "None"
