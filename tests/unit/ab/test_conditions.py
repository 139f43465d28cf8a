"""Options of an experiment: each mistake is one line, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from infercanary.ab import conditions
from infercanary.ab.conditions import Conditions, Mount
from infercanary.command import cli as cli


@pytest.fixture
def mistake(monkeypatch, capsys, tmp_path):
    """What `infercanary ab` prints on wrong use: one line, and exit code 2. Docker must not be needed for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")

    def mistake(*arguments):
        monkeypatch.setattr(sys, "argv", ["infercanary", "ab", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert exit_.value.code == 2, out + err
        assert out == "" and err.count("\n") == 1 and err.startswith("infercanary: ")
        return err[len("infercanary: ") : -1]

    return mistake


BOTH = ("old", "new")
TWO = "ab: give two images: infercanary ab IMAGE_A IMAGE_B; or one image and a setting of B's, such as --cpus-b 1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), TWO),
        (("old",), TWO),
        (("a", "b", "c"), TWO),
        ((*BOTH, "--restarts", "2"), "--restarts 2: give a number from 3 to 16"),
        ((*BOTH, "--runs", "7"), "--runs 7: give a number from 8 to 200"),
        ((*BOTH, "--budget", "nan"), "--budget nan: give seconds from 10 to 86400"),
        ((*BOTH, "--start-timeout", "0"), "--start-timeout 0: give seconds from 1 to 86400"),
        ((*BOTH, "--smallest-effect", "0"), "--smallest-effect 0: give a percentage from 0.1 to 50, such as 3"),
        (
            (*BOTH, "--clear-zone", "5"),
            "--clear-zone 5: must be below --smallest-effect (3 %); give a smaller one",
        ),
        ((*BOTH, "--confidence", "1"), "--confidence 1: give a share from 0.5 to 0.999999, such as 0.99"),
        ((*BOTH, "--cpus", "0"), "--cpus 0: give a number of CPUs, such as 2 or 0.5"),
        (("one", "--cpus-b", "0"), "--cpus-b 0: give a number of CPUs, such as 2 or 0.5"),
        (("one", "--memory-b", "1m"), "--memory-b 1m: give a size of 6m or more, such as 512m or 2g"),
        (("one", "--env-b", "1=2"), "--env-b 1=2: give NAME=VALUE, or NAME for its value here"),
        (("one", "--env-b", "NOT_SET_HERE"), "--env-b NOT_SET_HERE: is not set here; give NOT_SET_HERE=VALUE"),
        (("one", "--command-b", "'x"), "--command-b 'x: No closing quotation; fix the quotes"),
        (("one", "--config-b", "b.yaml"), "--config-b: belongs to --config; give that too"),
        (
            ("one", "--model", "m:f", "--input", "1", "--command-b", "x"),
            "--command-b: B runs the probe by --config or --model; give --config-b, or leave those out",
        ),
        (("one", "--cpus-b", "1"), "Docker does not answer ("),
        (
            (*BOTH, "--expect", "40%"),
            "--expect 40%: give a shift of latency with its sign: -40% is 40 % faster, +5% is 5 % slower",
        ),
        ((*BOTH, "--cpuset-cpus", "all"), "--cpuset-cpus all: give numbers of CPUs, such as 0-3 or 0,2"),
        ((*BOTH, "--memory", "2 big"), "--memory 2 big: give a size of 6m or more, such as 512m or 2g"),
        ((*BOTH, "--memory", "1m"), "--memory 1m: give a size of 6m or more, such as 512m or 2g"),
        ((*BOTH, "--gpus", "all"), "--gpus all: name the GPUs, such as device=0 or device=0,1"),
        ((*BOTH, "--gpus", "2"), "--gpus 2: name the GPUs, such as device=0 or device=0,1"),
        ((*BOTH, "--gpus", "device="), "--gpus device=: name the GPUs, such as device=0 or device=0,1"),
        ((*BOTH, "--env", "1=2"), "--env 1=2: give NAME=VALUE, or NAME for its value here"),
        ((*BOTH, "--env", "NOT_SET_HERE"), "--env NOT_SET_HERE: is not set here; give NOT_SET_HERE=VALUE"),
        (
            (*BOTH, "--volume", "/models"),
            "--volume /models: give SOURCE:/in/the/container, and :ro to make it read-only",
        ),
        (
            (*BOTH, "--volume", "a:b:ro"),
            "--volume a:b:ro: give SOURCE:/in/the/container, and :ro to make it read-only",
        ),
        ((*BOTH, "--command", "'open"), "--command 'open: No closing quotation; fix the quotes"),
        ((*BOTH, "--command", " "), "--command: is blank; give a command, or leave it out"),
        ((*BOTH, "--config", "a", "--model", "b"), "--config and --model: exclude each other; give one of them"),
        ((*BOTH, "--input", "1x3"), "--input: belongs to --model; give that too"),
        (
            (*BOTH, "--model", "m:f"),
            "--model: its input is not known; add --input, such as --input 1x3x224x224",
        ),
        (
            (*BOTH, "--model", "m:f", "--input", "3,4"),
            "--input 3,4: give a shape, such as 1x3x224x224 or 1x128:int64",
        ),
        (
            (*BOTH, "--config", "none.yaml"),
            "none.yaml: cannot be read (No such file or directory); check the path and its permissions",
        ),
        ((*BOTH, "--html", "/no/such/folder/a.html"),
         "--html: no folder `/no/such/folder`; make it, or mount a volume there"),
        ((*BOTH, "--html", "."), "--html: `.` is a folder; name a file in it"),
        (("--host-python", sys.executable, "new"),
         "--host-python: needs --config or --model, which say what to run on the host"),
        (("--host-python", sys.executable, *BOTH), "ab: with --host-python give one image, which is B"),
        (
            ("--host-python", "/no/python", "new", "--model", "m:f", "--input", "1"),
            "--host-python /no/python: is no program; name an interpreter, such as .venv/bin/python",
        ),
        (
            ("--host-python", "/bin/true", "new", "--model", "m:f", "--input", "1"),
            "--host-python /bin/true: has no InferCanary (it is no Python); install it there with pip",
        ),
        (BOTH, "Docker does not answer ("),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(mistake, arguments, line):
    said = mistake(*arguments)
    assert said == line or (
        line.endswith("(") and said.startswith(line) and said.endswith("set DOCKER_HOST")
    ), said


def test_settings_without_canaries(mistake, tmp_path):
    (tmp_path / "probe.yaml").write_text("listen: 0.0.0.0:9798\n")
    assert mistake(*BOTH, "--config", "probe.yaml") == (
        "probe.yaml: has no canaries; add `canaries:` as for `infercanary probe`"
    )
    (tmp_path / "probe.yaml").write_text("- a\n")
    line = "probe.yaml: expected a mapping, got a list; leave the `-` out, and write `name: value`"
    assert mistake(*BOTH, "--config", "probe.yaml") == line


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


def test_what_is_read_of_options(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROM_HERE", "x=y")
    assert conditions.environment(["A=1", "B=", "C=d=e", "FROM_HERE"]) == {
        "A": "1",
        "B": "",
        "C": "d=e",
        "FROM_HERE": "x=y",
    }
    assert conditions.mounts(["./m:/models:ro", "cache:/cache"]) == (
        Mount(str(Path("m").absolute()), "/models", True),
        Mount("cache", "/cache", False),
    )
    assert [m.is_volume for m in conditions.mounts(["/m:/models", "cache:/cache"])] == [False, True]
    assert conditions.memory("2g") == 2 << 30
    assert conditions.memory("") is None
    assert conditions.command("sh -c 'exec x'") == ("sh", "-c", "exec x")
    assert Conditions(cpuset="0-2,5").cpu_numbers() == {0, 1, 2, 5}
    assert Conditions().cpu_numbers() == set()


def test_gpus_are_named():
    assert Conditions(gpus=conditions.gpus("")).device_request() is None
    assert Conditions(gpus=conditions.gpus("device=0,GPU-5")).device_request() == {
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
