"""What an alert is about and no failure says is a warning in the probe's log, once when it begins."""

from __future__ import annotations

import logging

import pytest

from infercanary.probe.samplers.threads import ThreadSampler


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_more_threads_than_cpus(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ThreadSampler(compute_threads=lambda: 8, cgroup_cpus=lambda: 1.0)
    for _ in range(2):
        list(sampler.sample())
    assert said(caplog) == ["8 computing threads share 1 CPUs; set OMP_NUM_THREADS"]
