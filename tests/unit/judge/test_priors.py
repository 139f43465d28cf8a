"""What is learned of a store's services about restarts: near the truth, and not led astray by one of them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import Prior, learned, taught_by
from infercanary.judge.shift import Restarts
from infercanary.judge.stages import judge


def services(seed: int, sds: list[float]) -> list[Restarts]:
    rng = np.random.default_rng(seed)
    df = rng.integers(2, 12, len(sds))
    return [
        Restarts(float(sd * math.sqrt(rng.chisquare(d) / d)), float(d)) for sd, d in zip(sds, df, strict=True)
    ]


def starts(seed: int, levels: list[float], image: str = "old") -> list[Start]:
    rng = np.random.default_rng(seed)
    found = []
    for hour, level in enumerate(levels):
        g = Generation(
            service="s", container="a", boot_id=f"{image}{hour}", started_at=3600.0 * hour, image_id=image
        )
        runs = np.exp(math.log(0.02) + level + rng.normal(0, 0.01, 60))
        found.append(
            Start(g, [Sample(i, "c", 3600.0 * hour + 10 * i, "ok", float(x)) for i, x in enumerate(runs)])
        )
    return found


def test_it_is_near_what_the_services_do() -> None:
    for true in (0.004, 0.01, 0.03):
        prior = learned(services(1, [true] * 40))
        assert prior is not None and prior.services == 40
        assert prior.sd == pytest.approx(true, rel=0.3)
        assert prior.df == 4.0, "its tail stays heavy"
    mixed = learned(services(2, [0.003, 0.01, 0.03] * 14))
    assert mixed is not None and mixed.df == 2.0


def test_few_services_teach_nothing() -> None:
    assert learned([]) is None
    assert learned(services(3, [0.01] * 7)) is None
    assert learned([Restarts(0.01, 0.0)] * 30) is None, "they were not restarted"
    assert learned(services(3, [0.01] * 8)) is not None


@pytest.mark.parametrize(
    "lie", [Restarts(0.0, 1000.0), Restarts(2.0, 1.0), Restarts(1e-9, 3.0), Restarts(5.0, 500.0)]
)
def test_one_odd_or_lying_service_changes_little(lie: Restarts) -> None:
    honest = services(4, [0.01] * 12)
    one, other = learned(honest), learned([*honest, lie])
    assert one is not None and other is not None
    assert abs(math.log(other.sd / one.sd)) < 0.2


def test_each_service_counts_once_and_in_any_order() -> None:
    each = services(5, [0.005, 0.02] * 6)
    shuffled = random.Random(1).sample(each, len(each))
    assert learned(shuffled) == learned(each)
    often = [*each[:-1], Restarts(each[-1].sd, 10_000.0)]
    one, other = learned(each), learned(often)
    assert one is not None and other is not None
    assert other.sd == pytest.approx(one.sd, rel=0.25)


def test_the_starts_teach_without_the_prior() -> None:
    assert taught_by(starts(1, [0.0])) is None
    taught = taught_by(starts(2, [0.0, 0.05, -0.05, 0.02]))
    assert taught is not None and taught.df == 3
    assert taught.sd == pytest.approx(np.std([0.0, 0.05, -0.05, 0.02], ddof=1), rel=0.2)
    wider = taught_by(starts(2, [0.0, 0.05, -0.05, 0.02]), LIVE.but(**Prior(number=1, sd=0.2, df=4.0).changes).pool)
    assert wider is not None and wider.sd == pytest.approx(taught.sd)


def test_a_verdict_names_its_prior_and_depends_on_it() -> None:
    upgraded = [*starts(3, [0.0]), *(s for s in starts(4, [0.0, 0.12], "new") if s.generation.started_at)]
    assumed = judge(upgraded, [], "c")
    assert (assumed.state, assumed.prior, assumed.is_assumed) == ("unconfirmed", 0, True)
    narrow = judge(upgraded, [], "c", LIVE.but(**Prior(number=7, sd=0.003, df=4.0).changes))
    assert (narrow.state, narrow.prior, narrow.is_assumed) == ("regressed", 7, True)
    assert narrow == judge(upgraded, [], "c", LIVE.but(**Prior(number=7, sd=0.003, df=4.0).changes))
    assert LIVE.but(**Prior().changes) == LIVE


def test_only_what_differs_is_another_prior() -> None:
    known = Prior(number=1, sd=0.01, df=4.0)
    assert not Prior(sd=0.0105, df=4.0).has_moved(known)
    assert Prior(sd=0.012, df=4.0).has_moved(known) and Prior(sd=0.01, df=3.0).has_moved(known)


def test_one_service_in_ten_that_lies_changes_nothing_of_others() -> None:
    for seed in range(20):
        honest = services(
            seed, [0.0085 * math.sqrt(3 / x) for x in np.random.default_rng(seed).chisquare(3, 60)]
        )
        alone = learned(honest)
        assert alone is not None
        for claimed in (0.55, 0.0):
            among = learned([*honest, *[Restarts(claimed, 5.0)] * 6])
            assert among is not None
            assert among.sd == pytest.approx(alone.sd, rel=0.25)
            assert among.df >= 0.6 * alone.df


def test_the_spread_is_what_it_was_before_a_quarter_was_winsorized() -> None:
    normal = np.sort(np.random.default_rng(1).normal(size=200_000))
    tenth, quarter = (
        normal.clip(normal[int(share * normal.size)], normal[-int(share * normal.size)]).var()
        for share in (0.1, 0.25)
    )
    assert tenth / quarter == pytest.approx(LIVE.pool.prior_winsorized, rel=0.01)
