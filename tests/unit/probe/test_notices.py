"""What an alert is about and no failure says is a warning in the probe's log, once when it begins."""

from __future__ import annotations

import logging

import pytest

from infercanary.probe.failing import Failing
from infercanary.probe.histogram import Tally
from infercanary.probe.round import Round
from infercanary.probe.samplers.threads import ThreadSampler
from infercanary.probe.targets import Reading
from infercanary.probe.targets.matmul import UNUSED

WELL = Round("ok")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_a_model_that_runs_on_the_cpu_instead(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing("resnet", Tally(), ())
    failing.cuda("cpu_only_build", runs=False)
    assert said(caplog) == [], "what cannot be opened says so itself"
    for _ in range(3):
        failing.cuda("cpu_only_build", runs=True)
    assert said(caplog) == ["canary resnet: should run on CUDA, but runs on the CPU instead: cpu_only_build"]


def test_another_answer_and_again_after_it_was_the_same(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing("resnet", Tally(), ())
    other = WELL._replace(output_error=0.3)
    empty = Round("raised", "the completion holds no text", reason="wrong_answer")
    for done in (empty, WELL, other, other, WELL, other):
        failing.count(done)
    words = "canary resnet: gives a different answer to the same input than after its start"
    assert said(caplog) == [words, words]


def test_tensor_cores_that_are_not_in_use(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing("product", Tally(), ())
    for _ in range(2):
        failing.count(WELL._replace(readings=(Reading(UNUSED, 1.0),)))
    [line] = said(caplog)
    assert "Tensor Cores are not in use" in line


def test_more_threads_than_cpus(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ThreadSampler(compute_threads=lambda: 8, cgroup_cpus=lambda: 1.0)
    for _ in range(2):
        list(sampler.sample())
    assert said(caplog) == ["8 computing threads share 1 CPUs; set OMP_NUM_THREADS"]
