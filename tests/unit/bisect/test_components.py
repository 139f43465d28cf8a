"""Recipes of two sides, their differences, and the settings of a mixture; packages, read by the image's Python."""

import json
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from infercanary.ab.probe_settings import PACE
from infercanary.ab.sides import Side
from infercanary.bisect.components import CONTENTS, describe, recipe, requirements, side_of
from infercanary.bisect.mixture import _READ, read_tags

IMAGE = {
    "Config": {
        "Env": ["PATH=/bin", "PYTHON_VERSION=3.11", "A=1", "OLD=/HOME=y"],
        "Cmd": ["serve"],
        "User": "10001",
    },
    "Id": "sha256:1",
}
NEW = {
    "Config": {"Env": ["PATH=/usr/bin", "PYTHON_VERSION=3.12", "A=2"], "Cmd": ["serve"]},
    "Id": "sha256:2",
}
SIDE = Side(image="old", variables={**PACE, "B": "1"}, cpus=2.0)
A = recipe(SIDE, IMAGE, ["torch==2.7.0 triton==3.3.0", "numpy==1.26"])
B = recipe(replace(SIDE, image="new", cpus=1.0), NEW, ["torch==2.8.0 triton==3.4.0", "numpy==2.0"])


def test_differences_are_components_and_variables_of_the_files_follow_them():
    differing = {key for key in {**A, **B} if A.get(key) != B.get(key)}
    assert differing == {CONTENTS, "cpus", "env.A", "env.OLD", "package torch", "package numpy"}


@pytest.mark.parametrize(
    ("taken", "changes", "packages"),
    [
        ((), {}, []),
        (("cpus",), {"cpus": 1.0}, []),
        (("env.A", "env.OLD"), {"variables": {**PACE, "A": "2", "OLD": None, "B": "1"}}, []),
        (("package torch",), {}, ["torch==2.8.0", "triton==3.4.0"]),
    ],
)
def test_a_mixture_starts_with_the_components_of_both(taken, changes, packages):
    wanted = {**A, **{key: B.get(key) for key in taken}}
    usual = replace(
        SIDE, image="i", command=("serve",), variables={"A": "1", "OLD": "/HOME=y", **SIDE.variables}
    )
    made = side_of(wanted, "i")
    assert replace(made, command=(*made.command,)) == replace(usual, **changes)
    assert requirements(wanted, A) == packages


def test_in_the_contents_of_b_the_packages_of_a_are_installed():
    wanted = {**A, CONTENTS: B[CONTENTS], "package numpy": B["package numpy"]}
    assert requirements(wanted, B) == ["torch==2.7.0", "triton==3.3.0"]


def test_a_command_of_one_side_replaces_the_images():
    own = recipe(replace(SIDE, command=("serve", "--fast")), IMAGE, [])
    assert own["command"] != A["command"]
    assert side_of(own, "i").command == ("serve", "--fast")


@pytest.mark.parametrize(
    ("key", "a", "b", "text"),
    [
        ("cpus", "2", "1", "cpus 2 → 1"),
        ("env.OMP_NUM_THREADS", "1", None, "OMP_NUM_THREADS 1 → None"),
        ("env.API_TOKEN", "secret", "hidden", "API_TOKEN *** → ***"),
        ("package torch", "torch==2.7.0", "torch==2.8.0", "torch 2.7.0 → 2.8.0"),
        ("package torch", "torch==2.7.0 triton==3.3.0", "torch==2.8.0 triton==3.4.0", "torch 2.7.0 → 2.8.0"),
        ("env.A", "a", "b" * 100, f"A a → {'b' * 59}…"),
        (CONTENTS, [], [1], "image contents"),
    ],
)
def test_the_text_of_a_component(key, a, b, text):
    assert describe(key, a, b) == text


def installed(folder, **packages):
    """Write packages as pip does; each has a version and requirements."""
    for name, (version, *needs) in packages.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, "", ""]))
        if version == "0+local":
            (info / "direct_url.json").write_text("{}")
    return folder


def read(folder, found, config=""):
    """Run the script as in an image, whose Python has these packages and pip."""
    only = f"""
import importlib.metadata as m
distributions = m.distributions
m.distributions = lambda: distributions(path=[{str(folder)!r}])
"""
    done = subprocess.run(
        [sys.executable, "-c", f"{only}\n{_READ}", json.dumps(found)],
        capture_output=True, text=True, check=True, env={"PATH": "/bin", "PIP_CONFIG_FILE": config or "/dev/null"},
    )  # fmt: skip
    return json.loads(done.stdout)


def test_packages_that_refuse_each_others_versions_are_one_group(tmp_path):
    shared = {"click": ("8.1", "torch<1; extra == 'none'"), "mine": ("0+local",)}
    old = installed(
        tmp_path / "a", **shared, Torch=("2.7.0", "nvidia-blas==12.6"), nvidia_blas=("12.6",), numpy=("1.26",),
        torchvision=("0.22", "torch==2.7.0"), only_here=("1",),
    )  # fmt: skip
    new = installed(
        tmp_path / "b", **shared, Torch=("2.8.0", "nvidia-blas==12.8", "numpy>=1"), nvidia_blas=("12.8",),
        numpy=("2.0",), torchvision=("0.23", "torch==2.8.0"),
    )  # fmt: skip
    found: Any = {}
    for folder in (old, new, old):
        found = read(folder, found)
    assert found["groups"] == [
        ["numpy==1.26", "numpy==2.0"],
        [
            "torch==2.7.0 torchvision==0.22 nvidia-blas==12.6",
            "torch==2.8.0 torchvision==0.23 nvidia-blas==12.8",
        ],
    ]
    assert "mine" not in found["versions"]


@pytest.mark.parametrize(
    ("config", "has_index"), [("", False), ("[global]\nindex-url = https://x/simple\n", True)]
)
def test_pips_own_setting_is_an_index(tmp_path, config, has_index):
    (tmp_path / "pip.conf").write_text(config)
    assert read(tmp_path, {}, str(tmp_path / "pip.conf"))["has_index"] is has_index


@pytest.mark.parametrize(
    ("pair", "between"),
    [
        (("search:1", "search:3"), ["search:1", "search:old", "search:2", "search:3"]),
        (("search:1", "search:old"), ["search:1", "search:old"]),
        (("search:3", "search:1"), []),
        (("search:1", "search"), []),
        (("search:1", "other:3"), []),
    ],
)
def test_tags_between_are_in_the_order_of_creation(pair, between):
    created = {
        "search:3": 30,
        "search:2": 20,
        "search:old": 15,
        "search:1": 10,
        "search:0": 5,
        "search:new": 40,
    }
    images = [{"Id": name, "RepoTags": [name], "Created": at} for name, at in created.items()]
    client = Mock(images=lambda name: images if name == "search" else [])
    tags = read_tags(client, pair)
    assert [*tags] == between
    assert all(image["Id"] == name for name, image in tags.items())
