"""`infercanary bisect` with real containers: packages of images, mixture images, and whole bisections."""

from contextlib import closing

import docker.errors
import pytest
from harness import run

from bisecting import CASES, bisect, images
from infercanary.ab.daemon import connect
from infercanary.ab.turn import StartFailed
from infercanary.bisect.mixture import mixture_image, read_packages

PACKAGE = CASES[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two images whose package `slowdown` has the versions 1.0 and 2.0, and an index for pip."""
    if not run("docker", "images", "--quiet", "infercanary-example:dev"):
        pytest.skip("needs the image infercanary-example:dev")
    with images(PACKAGE, tmp_path_factory.mktemp("bisect")) as names:
        yield names


@pytest.fixture
def client():
    with closing(connect()) as made:
        yield made


def test_a_mixture_image_has_the_other_version_and_starts_like_its_base(client, pair):
    a, b = (client.inspect_image(name) for name in pair)
    groups = read_packages(client, [a["Id"], b["Id"]], "")
    assert ["slowdown==1.0", "slowdown==2.0"] in groups
    with mixture_image(client, a, ["slowdown==2.0"], "") as name:
        made = client.inspect_image(name)["Config"]
        for key in ("Entrypoint", "Cmd", "User", "WorkingDir", "Env"):
            assert (made.get(key) or None) == (a["Config"].get(key) or None), key
        code = "import importlib.metadata as m; print(m.version('slowdown'))"
        assert run("docker", "run", "--rm", "--network", "none", name, "python", "-c", code) == "2.0\n"
    with pytest.raises(docker.errors.ImageNotFound):
        client.inspect_image(name)


def test_packages_that_cannot_be_installed_are_a_reason(client, pair):
    base = client.inspect_image(pair[0])
    with (
        pytest.raises(StartFailed, match=r"No matching distribution found for slowdown==3\.0"),
        mixture_image(client, base, ["slowdown==3.0"], ""),
    ):
        raise AssertionError
    with mixture_image(client, base, [], "") as name:
        assert name == base["Id"]


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_guilty_component_is_named(case):
    assert bisect(case)
