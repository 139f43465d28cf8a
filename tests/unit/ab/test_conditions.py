"""Conditions of a side, and the settings of its probe."""

from __future__ import annotations

import pytest
import yaml

from infercanary.ab import conditions
from infercanary.ab.conditions import Conditions


def test_settings_of_an_experiment(tmp_path):
    path = tmp_path / "probe.yaml"
    path.write_text(
        "canaries: {c: {target: torch, options: {seed: 3}}}\njournal: /var/log/runs\nlisten: unix:///run/p.sock\n"
        "interval_seconds: 60\ntimeout_seconds: 7\n"
    )
    made = yaml.safe_load(conditions.document(conditions.settings(str(path))))
    assert made == {
        "canaries": {"c": {"target": "torch", "options": {"seed": 3}}},
        "journal": None,
        "listen": 9798,
        "interval_seconds": 0.5,
        "duty_cap": 1.0,
        "timeout_seconds": 7,
    }


@pytest.mark.parametrize(
    ("sweep", "every"), [({}, 20.0), ({"seconds": 2}, 4.0), ({"seconds": 0.2, "every_seconds": 3600}, 1.0)]
)
def test_a_sweep_comes_soon(sweep, every):
    swept = {"target": "torch", "sweep": {"batches": [1], **sweep}}
    made = yaml.safe_load(conditions.document({"canaries": {"c": swept, "d": {"target": "torch"}}}))
    assert made["canaries"]["c"]["sweep"] == {"batches": [1], **sweep, "every_seconds": every}
    assert made["canaries"]["d"] == {"target": "torch"}


@pytest.mark.parametrize("canary", [3, None, {"sweep": 3}, {"sweep": {"seconds": "a"}}])
def test_what_is_wrong_with_a_canary_is_left_to_the_probe(canary):
    assert yaml.safe_load(conditions.document({"canaries": {"c": canary}}))["canaries"]["c"] == canary


def test_settings_of_a_model():
    made = conditions.settings_of("model:build", ["1x3x224x224", "1x128:int64"], "cuda")
    assert made["canaries"]["model"]["options"] == {
        "model": "model:build",
        "inputs": [{"shape": [1, 3, 224, 224]}, {"shape": [1, 128], "dtype": "int64"}],
        "device": "cuda",
    }


def test_cpus_of_a_side():
    assert Conditions(cpuset="0-2,5").cpu_numbers() == {0, 1, 2, 5}
    assert Conditions().cpu_numbers() == set()


def test_gpus_are_named():
    assert Conditions().device_request() is None
    assert Conditions(gpus="0,GPU-5").device_request() == {
        "capabilities": [["gpu"]],
        "device_ids": ["0", "GPU-5"],
    }


def test_on_the_host_cuda_sees_the_gpus_that_are_named():
    host = Conditions(gpus="1,GPU-5", environment={"A": "b"}).host_variables
    assert host["CUDA_VISIBLE_DEVICES"] == "1,GPU-5" and host["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert host["A"] == "b"
    assert "CUDA_VISIBLE_DEVICES" not in Conditions().host_variables


def test_what_is_asked_for_goes_before_the_pace():
    plain = Conditions().variables
    assert plain == {"INFERCANARY_INTERVAL_SECONDS": "0.5", "INFERCANARY_DUTY_CAP": "1"}
    assert Conditions(environment={"INFERCANARY_DUTY_CAP": "0.2"}).variables["INFERCANARY_DUTY_CAP"] == "0.2"
