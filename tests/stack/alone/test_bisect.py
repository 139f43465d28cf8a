"""`infercanary bisect` with real containers: packages of images, mixture images, and whole bisections."""

from contextlib import closing

import docker.errors
import pytest
from harness import run

from bisecting import CASES, bisect, images
from infercanary.ab.daemon import connect
from infercanary.ab.sides import Side
from infercanary.ab.turn import StartFailed
from infercanary.bisect.components import recipe
from infercanary.bisect.mixture import Sides, mixture, read_packages, read_tags

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


def sides(client, pair, *versions):
    images = [client.inspect_image(name) for name in pair]
    recipes = [
        recipe(Side(image=name), image, [f"slowdown=={version}"])
        for name, image, version in zip(pair, images, versions, strict=True)
    ]
    return Sides(images, recipes, {}, {})


PACKAGES = frozenset({"package slowdown"})


def test_a_mixture_has_the_other_version_and_starts_like_its_base(client, pair):
    both = sides(client, pair, "1.0", "2.0")
    a, b = both.images
    groups = read_packages(client, [a["Id"], b["Id"]], "")
    assert ["slowdown==1.0", "slowdown==2.0"] in groups
    with mixture(client, both, PACKAGES, "") as side:
        made = client.inspect_image(side.image)["Config"]
        for key in ("Entrypoint", "Cmd", "User", "WorkingDir", "Env"):
            assert (made.get(key) or None) == (a["Config"].get(key) or None), key
        code = "import importlib.metadata as m; print(m.version('slowdown'))"
        assert run("docker", "run", "--rm", "--network", "none", side.image, "python", "-c", code) == "2.0\n"
    with pytest.raises(docker.errors.ImageNotFound):
        client.inspect_image(side.image)


def test_packages_that_cannot_be_installed_are_a_reason(client, pair):
    both = sides(client, pair, "1.0", "3.0")
    with (
        pytest.raises(StartFailed, match=r"No matching distribution found for slowdown==3\.0"),
        mixture(client, both, PACKAGES, ""),
    ):
        raise AssertionError
    with mixture(client, both, frozenset({"cpus"}), "") as side:
        assert side.image == both.images[0]["Id"]


def test_docker_lists_the_tags_from_a_to_b(client, pair):
    tags = read_tags(client, pair)
    assert [tags[name]["Id"] for name in pair] == [client.inspect_image(name)["Id"] for name in pair]
    assert (next(iter(tags)), [*tags][-1]) == pair
    assert read_tags(client, pair[::-1]) == {}


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_guilty_component_is_named(case):
    assert bisect(case)
