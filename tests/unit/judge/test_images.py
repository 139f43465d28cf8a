"""Images that nodes name by digests of different content."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from infercanary.judge.identity import by_reference, identified, reference_of
from infercanary.judge.model import Generation, ImageForm, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.sentence import sentence
from infercanary.judge.stages import judge
from infercanary.judge.upgrade import select

FORMS: dict[str, ImageForm] = {"r": "registry", "d": "docker", "c": "config"}


def started(number: int, image: str, seconds: float = 0.01, at: float | None = None, runs: int = 90) -> Start:
    """``app:1 r7`` is the image app:1, as its registry digest 7; c is of its config, d is Docker's word."""
    reference, _, named = image.partition(" ")
    form, digest = FORMS.get(named[0], ""), f"sha256:{named[1:]}"
    loaded = form in ("config", "")
    at = 1000.0 * number if at is None else at
    generation = Generation(
        service="search",
        namespace="prod",
        container=f"search-{number}/server",
        boot_id=f"b{number}",
        started_at=at,
        image=reference,
        image_id=digest if loaded else "",
        image_digest="" if loaded else digest,
        image_form=form,
    )
    each = [Sample(i, "c", at + 10 * i, "ok", seconds * (1 + 0.001 * (i % 3)), 5) for i in range(runs)]
    return Start.of(generation, each)


def images(*each: str) -> list[int]:
    """Which image each start ran, by the place of the first start that ran it."""
    keys = [start.identity for start in identified([started(n, image) for n, image in enumerate(each)])]
    return [keys.index(key) for key in keys]


@pytest.mark.parametrize(
    ("each", "ran"),
    [
        (("app:1 r1", "app:1 r1"), [0, 0]),
        (("app:1 r1", "app:1 r2"), [0, 1]),  # a tag that moved on
        (("app:1 r1", "app:2 r1"), [0, 0]),  # another tag of the same content
        (("app:1 r1", "other/app:1 r1"), [0, 0]),
        (("app:1 r1", "app:1 c9"), [0, 0]),  # once pulled, once loaded
        (("app:1 c9", "app:1 r1"), [0, 0]),
        (("app:1 r1", "app:1 d2"), [0, 0]),
        (("app:1 r1", "app:1 d1"), [0, 0]),
        (("app:1 r1", "docker.io/library/app:1 c9"), [0, 0]),
        (("app r1", "app:latest c9"), [0, 0]),
        (("app:1 r1", "app:2 c9"), [0, 1]),  # by reference
        (("app:1 r1", "app:1 c9", "app:2 c8", "app:2 r2"), [0, 0, 2, 2]),
        (("app:1 r1", "app:1 c9", "app:1 r2", "app:1 c8"), [0, 0, 2, 2]),  # the tag moved on in both
        (("app:1 r1", "app:1 c9", "app:1 r2", "app:1 c9"), [0, 0, 2, 0]),  # and was put back
        (("app:1 c9", "app:1 c9", "app:1 r1", "app:1 c8"), [0, 0, 0, 3]),
        (("app:1 -1", "app:1 -2"), [0, 1]),  # Docker, which knows both digests of an image
    ],
)
def test_which_image_a_start_ran(each: Sequence[str], ran: list[int]) -> None:
    assert images(*each) == ran


def test_twice_is_the_same_as_once() -> None:
    starts = [
        started(n, i) for n, i in enumerate(("app:1 r1", "app:1 c9", "app:1 r2", "app:1 c8", "app:1 c9"))
    ]
    once = identified(starts)
    assert [s.identity for s in identified(once)] == [s.identity for s in once]
    alike = [started(n, "app:1 r1") for n in range(3)]
    assert identified(alike) == alike


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("app", "docker.io/library/app:latest"),
        ("app:1", "docker.io/library/app:1"),
        ("team/app:1", "docker.io/team/app:1"),
        ("docker.io/library/app:1", "docker.io/library/app:1"),
        ("registry:5000/app", "registry:5000/app:latest"),
        ("localhost/app:1", "localhost/app:1"),
        ("ghcr.io/team/app@sha256:1", "ghcr.io/team/app@sha256:1"),
        ("app:1@sha256:1", "docker.io/library/app:1@sha256:1"),
    ],
)
def test_a_whole_reference(image: str, whole: str) -> None:
    assert reference_of(image) == whole


def test_the_same_image_in_another_form_is_no_upgrade() -> None:
    starts = [started(0, "app:1 r1"), started(1, "app:1 c9", 0.012)]
    assert select(starts).upgrade is None


def test_an_upgrade_by_reference_says_so() -> None:
    found = judge([started(0, "app:1 r1"), started(1, "app:2 c9", 0.02)], [], "c", LIVE)
    assert (found.state, found.by_reference, found.changed) == ("regressed", True, "image")
    assert "differ by reference" in sentence(found)
    content = judge([started(0, "app:1 r1"), started(1, "app:2 r2", 0.02)], [], "c", LIVE)
    assert not content.by_reference and "by reference" not in sentence(content)


def test_a_form_in_common_is_compared() -> None:
    before = [started(0, "app:1 r1"), started(1, "app:1 c9")]
    assert not by_reference(before, [started(2, "app:1 c8")])
    assert by_reference(before[:1], [started(2, "app:2 c8")])
    docker = [msgspec.structs.replace(s.generation, image_form="") for s in before[:1]]
    assert not by_reference([Start(docker[0], ())], [started(2, "app:2 c8")])


@pytest.mark.parametrize("seconds", [0.02, 0.01])
def test_a_rolling_upgrade_of_a_deployment_is_one_upgrade(seconds: float) -> None:
    """With a surge: a pod of the new image runs before one of the old image ends. Every pod has a name of its own."""
    old = [started(n, "app:1 r1", at=7.0 * n, runs=400 + 6 * n) for n in range(3)]
    new = [started(n + 3, "app:2 r2", seconds, at=3970.0 + 60 * n, runs=192) for n in range(3)]
    upgrade = select([*old, *new]).upgrade
    assert upgrade is not None
    assert [s.boot for s in upgrade.before] == [s.boot for s in old]
    assert [s.boot for s in upgrade.after] == [s.boot for s in new]
    found = judge([*old, *new], [], "c", LIVE)
    assert found.state == ("regressed" if seconds == 0.02 else "inconclusive"), sentence(found)
    assert found.upgraded_at == 3970.0 and not found.rollback


def test_more_pods_identified_are_no_upgrade() -> None:
    assert select([started(n, "app:1 r1") for n in range(6)]).upgrade is None


def ended(start: Start, at: float) -> Start:
    return Start(msgspec.structs.replace(start.generation, ended_at=at), start.samples, start.last_at)


def test_a_rollback_minutes_after_the_upgrade_is_one() -> None:
    """Pods have new names, and the old ones ran until just before: only that they are known to be gone shows it."""
    old = ended(started(0, "app:1 r1", at=0.0, runs=100), 1005.0)
    slower = ended(started(1, "app:2 r2", 0.02, at=1000.0, runs=30), 1305.0)
    again = started(2, "app:1 r1", at=1300.0, runs=24)
    found = judge([old, slower, again], [], "c", LIVE)
    assert (found.state, found.rollback, found.upgraded_at) == ("improved", True, 1300.0), sentence(found)


def test_a_rollout_that_was_stopped_is_known_as_soon_as_its_pods_are_gone() -> None:
    old = started(0, "app:1 r1", at=0.0, runs=140)
    slower = started(1, "app:2 r2", 0.02, at=1000.0, runs=20)
    assert judge([old, slower], [], "c", LIVE).state == "regressed"
    assert judge([old, ended(slower, 1205.0)], [], "c", LIVE).state == "no_baseline"


def test_a_pod_that_is_replaced_is_compared_with_the_one_that_ran_last() -> None:
    """A pod that tried another image, and was gone long before, began later."""
    old = ended(started(0, "app:1 r1", at=0.0, runs=300), 3001.0)
    tried = ended(started(1, "app:2 r2", 0.02, at=1000.0, runs=20), 1205.0)
    assert select([old, tried, started(2, "app:1 r1", at=3005.0)]).upgrade is None


def test_where_all_pods_are_gone_the_verdict_stays() -> None:
    old, slower = started(0, "app:1 r1", at=0.0, runs=100), started(1, "app:2 r2", 0.02, at=1000.0, runs=40)
    assert judge([ended(old, 1005.0), ended(slower, 1401.0)], [], "c", LIVE).state == "regressed"


def test_a_rollback_is_known_as_one() -> None:
    starts = [started(n, image, 0.01 * number) for n, (image, number) in enumerate((("app:1 r1", 1),) * 2)]
    starts += [started(2, "app:2 r2", 0.02), started(3, "app:1 r1"), started(4, "app:1 r1")]
    found = judge(starts, [], "c", LIVE)
    assert found.rollback and found.state == "improved"
