"""Sides of an experiment: keys on the command line and in a file. Each mistake gives one line before any start."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from infercanary.ab import sides
from infercanary.ab.probe_settings import PACE
from infercanary.ab.sides import KEYS, Side, words
from tests.scenarios import cases

PROBE = {"canaries": {"c": {"target": "torch"}}}


def read(*images, path="", both=(), a=(), b=()):
    return sides.read(images, str(path), both, a, b)


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "secret")
    Path("probe.yaml").write_text(yaml.safe_dump(PROBE))
    return tmp_path


ENTRIES = """\
command=sh -c 'exec x'
cpus=0.5
cpuset=0-2,5
memory=2g
gpus=device=1,GPU-5
volume=./m:/models:ro
volume=cache:/cache
env.A=b=c
env.EMPTY=
env.TOKEN
"""


def test_every_key(here):
    entries = ENTRIES.splitlines()
    volume: Any = [
        {"Target": "/models", "Source": str(here / "m"), "Type": "bind", "ReadOnly": True},
        {"Target": "/cache", "Source": "cache", "Type": "volume", "ReadOnly": False},
    ]
    a, b = read("old", "new", both=entries)
    assert replace(a, image="new") == b
    assert a.image == "old"
    assert a == Side(
        image="old",
        command=("sh", "-c", "exec x"),
        cpus=0.5,
        cpuset=frozenset({0, 1, 2, 5}),
        memory=2 << 30,
        gpus=["1", "GPU-5"],
        volume=volume,
        variables={**PACE, "A": "b=c", "EMPTY": "", "TOKEN": "secret"},
    )
    a, b = read(
        "new",
        both=["config=probe.yaml"],
        a=[f"python={sys.executable}"],
    )
    assert (a.image, a.python, b.image, b.python) == ("", sys.executable, "new", "")
    a, b = read("new", both=["config=probe.yaml"], b=["command=serve", "env.INFERCANARY_DUTY_CAP=0.2"])
    assert (a.probe, a.variables) == (PROBE, PACE)
    assert (b.probe, b.command, b.variables["INFERCANARY_DUTY_CAP"]) == ({}, ("serve",), "0.2")
    used = {"image", "python", "config", "env.NAME"} | {e.partition("=")[0] for e in entries}
    assert KEYS.keys() <= used  # this table must have a case for each key


def test_a_path_may_begin_with_the_home(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    (here / "python").symlink_to(sys.executable)
    both = ["config=probe.yaml", "python=~/python"]
    a, b = read("image", both=["volume=~/models:/m"], b=["volume=~nobody-here:/m"], a=["cpus=1"])
    assert (a.volume[0]["Source"], b.volume[0]["Source"]) == (
        str(here / "models"),
        str(here / "~nobody-here"),
    )
    assert read(both=both, a=["env.A=1"])[0].python == str(here / "python")


def test_a_file_is_read_as_the_command_line_is(here):
    path = here / "experiment.yaml"
    path.write_text(
        "both: {image: search, config: probe.yaml, cpus: 2, volume: ['/m:/m', 'n:/n']}\n"
        "a: {env: {OMP_NUM_THREADS: 1, TOKEN: }}\nb: {env.OMP_NUM_THREADS: 2, memory: 512m}\n"
    )
    both = ["image=search", "config=probe.yaml", "cpus=2", "volume=/m:/m", "volume=n:/n"]
    b = ["env.OMP_NUM_THREADS=2", "memory=512m"]
    assert read(path=path) == read(both=both, a=["env.OMP_NUM_THREADS=1", "env.TOKEN"], b=b)
    assert (
        read(path=path, both=["cpus=1"], b=["env.X=1"])[1]
        == read(both=[*both, "cpus=1"], b=[*b, "env.X=1"])[1]
    )


def test_settings_that_differ_are_named_as_they_were_given(here):
    a, b = read(
        "search",
        both=["memory=1g", "env.MODEL=resnet", "cpus=2"],
        a=["env.OMP_NUM_THREADS=1", "volume=/m:/m"],
        b=["env.OMP_NUM_THREADS=2", "env.TOKEN", "env.MODEL=resnet", "cpus=0.5", "command=serve --workers 2"],
    )
    assert a.differing == {"cpus": "2", "env.OMP_NUM_THREADS": "1", "volume": "/m:/m"}
    assert words(b.differing) == "cpus=0.5, OMP_NUM_THREADS=2, TOKEN=(as here), command=serve --workers 2"
    assert words({}) == ""
    assert len(words({"LONG": "x" * 500})) <= 60


@pytest.fixture
def mistake(monkeypatch, infercanary):
    """Return a function that runs a wrong `infercanary ab`: one line and exit code 2, without Docker."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")

    def mistake(*arguments):
        code, out, err = infercanary("ab", *arguments)
        assert code == 2, out + err
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("infercanary: ")
        return err[len("infercanary: ") : -1]

    return mistake


MISTAKES = """
                                             | give two images, IMAGE_A IMAGE_B
old                                          | give two images, IMAGE_A IMAGE_B
a b c                                        | give two images, IMAGE_A IMAGE_B
old new --restarts 2                         | --restarts 2: give a number from 3 to 16
old new --runs 7                             | --runs 7: give a number from 8 to 200
old new --budget nan                         | --budget nan: give seconds from 10 to 86400
old new --start-timeout 0                    | --start-timeout 0: give seconds from 1 to 86400
old new --smallest-effect 0                  | --smallest-effect 0: give a percentage from 0.1 to 50, such as 3
old new --expect 40%                         | --expect 40%: give a shift of latency with its sign: -40% is 40 % faster
old new --html /no/such/folder/a.html        | --html: no folder `/no/such/folder`; create the folder, or mount a volume
old new --colour                             | No such option '--colour'
one --b cpu=1                                | --b: unknown key `cpu`; did you mean `cpus`? known keys: image, python
one --b env.1=2                              | --b: unknown key `env.1`; did you mean `env.NAME`? known keys:
one --b env=A=1                              | --b: unknown key `env`; known keys: image, python
one --b env.NOT_SET_HERE                     | --b: env.NOT_SET_HERE: is not set in this environment; give
one --b cpus                                 | B: cpus=: give a number of CPUs, such as 2 or 0.5
one --a cpus=nan                             | A: cpus=nan: give a number of CPUs, such as 2 or 0.5
old new --both cpuset=all                    | A: cpuset=all: give numbers of CPUs, such as 0-3 or 0,2
old new --both memory=2big                   | A: memory=2big: give a size, such as 512m or 2g
old new --both gpus=all                      | A: gpus=all: give GPUs by index or uuid, such as device=0 or device=0,1
old new --both volume=/models                | A: volume=/models: give SOURCE:/in/the/container, with :ro for
old new --both command='open                 | A: command='open: give a command, quoted as for a shell,
old new --both config=none.yaml              | none.yaml: cannot be read (No such file or directory); check the path
old new --both config=p --both command=x     | A: config and command: exclude each other; give one of them
old new --both model=m:f                     | --both: unknown key `model`; known keys: image, python
new --a python=PYTHON                        | A: python: needs config; give both
old new --a python=PYTHON                    | A: image and python: exclude each other; give one of them
new --a python=PYTHON --both config=p --both memory=1g | A: python and memory: exclude
--experiment none.yaml                       | none.yaml: cannot be read (No such file or directory); check
old new --experiment wrong.yaml              | A: cpus=0: give a number of CPUs, such as 2 or 0.5
--experiment keys.yaml                       | keys.yaml: unknown key `c`; known keys: both, a, b
--experiment true.yaml                       | true.yaml: b: env.A: means `True` in YAML; put the value in quotes
old new                                      | Docker does not answer (
--format github --restarts 3 -- old new      | Docker does not answer (
old new --both config=empty.yaml | empty.yaml: has no canaries; add `canaries:` as for `infercanary probe`
old new --both config=list.yaml | list.yaml: expected a mapping, got a list; leave the `-` out
"""


@cases(MISTAKES)
def test_a_mistake_is_one_line(arguments, line, mistake):
    Path("wrong.yaml").write_text("a: {cpus: 0}\n")
    Path("keys.yaml").write_text("c: {cpus: 1}\n")
    Path("empty.yaml").write_text("listen: 0.0.0.0:9798\n")
    Path("list.yaml").write_text("- a\n")
    Path("true.yaml").write_text("b: {env: {A: true}}\n")
    said = mistake(*(each.replace("PYTHON", sys.executable) for each in arguments.split()))
    assert said.startswith(line), said
