"""The search of a bisection, on simulated experiments with a known truth."""

import math
import random
from itertools import combinations

import pytest

from infercanary.bisect.components import CONTENTS
from infercanary.bisect.search import Components, Outcome, Search
from infercanary.judge.shift import Shift

EVERY = "abcdef"
TOTAL = 0.3


def single(guilty):
    return lambda taken: float(guilty in taken)


def pair(first, second, alone=(0.0, 0.0)):
    """Return the share of a mixture if two components are guilty; ``alone`` has the share of each without the other."""
    shares = {(True, True): 1.0, (True, False): alone[0], (False, True): alone[1], (False, False): 0.0}
    return lambda taken: shares[first in taken, second in taken]


def bisect(share, every=EVERY, sd=0.004, seed=1, total=TOTAL, restarts=12, broken=(), tags=()):
    """Return the finding, and the mixtures of all experiments. ``broken`` mixtures cannot run."""
    rng = random.Random(seed)

    def shift(taken):
        return Shift(total * share(taken) + rng.gauss(0, sd * math.sqrt(2)), 0.001, 20.0)

    search = Search(Components(every), [shift(every) for _ in range(4)], restarts, tags)
    outcomes: list[Outcome] = []
    while isinstance(taken := search.decide(outcomes), frozenset):
        assert search.decide(outcomes) == taken, "the same outcomes give the same experiment"
        pairs = [] if taken in broken else [shift(taken)]
        while pairs and not search.judge(pairs).done:
            pairs.append(shift(taken))
        outcomes.append(Outcome(taken, pairs, "" if pairs else "exit code 1"))
    assert len(outcomes) <= search.experiments
    return taken, [outcome.taken for outcome in outcomes]


@pytest.mark.parametrize("guilty", EVERY)
def test_one_guilty_component_needs_at_most_five_experiments_in_both_directions(guilty):
    found, mixtures = bisect(single(guilty))
    assert found.named == {guilty}
    assert not found.interact
    [part] = found.parts
    assert abs(part.share - 1) < part.half() < 0.2
    assert len(mixtures) <= 5
    assert {Components(guilty), Components(EVERY) - {guilty}} <= {*mixtures}


@pytest.mark.parametrize("alone", [(0.0, 0.0), (1.0, 1.0), (0.3, 0.2)])
@pytest.mark.parametrize("guilty", [*combinations(EVERY, 2)])
def test_two_that_interact_need_at_most_nine(guilty, alone):
    found, mixtures = bisect(pair(guilty[0], guilty[1], alone))
    assert found.named == {*guilty}
    assert found.interact
    assert len(mixtures) <= 9
    shares = {part.components: part.share for part in found.parts}
    assert [*shares] == [Components(guilty), *map(Components, sorted(guilty))]
    assert shares[Components(guilty)] == pytest.approx(1, abs=0.1)
    for component, share in zip(guilty, alone, strict=True):
        assert shares[Components(component)] == pytest.approx(share, abs=0.1)


def test_two_that_add_up_do_not_interact():
    """The first component moves the mixture past the middle; the finding names this component's share, not the rest."""
    found, _ = bisect(pair("b", "e", (0.7, 0.3)))
    assert (found.named, found.interact) == ({"b"}, False)
    assert found.parts[0].share == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("every", ["a", "ab", "abc", "abcdefghijkl"])
def test_any_number_of_components(every):
    found, mixtures = bisect(single(every[-1]), every)
    assert found.named == {every[-1]}
    assert found.parts
    assert len(mixtures) <= math.ceil(math.log2(len(every))) + 2


def test_an_improvement_is_bisected_as_well():
    assert bisect(single("c"), total=-TOTAL)[0].named == {"c"}


def test_a_mixture_that_cannot_run_is_avoided():
    _, usual = bisect(single("b"))
    found, mixtures = bisect(single("b"), broken=usual[:1])
    assert found.named == {"b"}
    assert found.parts
    assert mixtures[1] != usual[1]


def test_components_that_run_only_together_are_not_separated():
    def is_split(taken):
        return 0 < len({"c", "d", "e"} & taken) < 3

    broken = [Components(x) for n in range(1, 6) for x in combinations(EVERY, n) if is_split({*x})]
    found, _ = bisect(single("d"), broken=broken)
    assert found.named == {"c", "d", "e"}
    assert found.parts[0].share == pytest.approx(1, abs=0.1)


def test_a_name_needs_a_mixture_in_each_direction():
    found, _ = bisect(single("b"), broken=[Components("acdef")])
    assert (found.named, found.parts) == ({"b"}, ())


def test_an_experiment_goes_on_while_its_mixture_may_be_like_either_side():
    search = Search(Components(EVERY), [Shift(TOTAL, 0.001, 20.0)] * 4, 12)
    near = [Shift(x * TOTAL, 0.001, 20.0) for x in (0.98, 1.02)]
    apart = [Shift(x * TOTAL, 0.001, 20.0) for x in (0.2, 0.8)]
    assert not search.judge(near[:1]).done
    assert search.judge(near * 2)[2:] == (True, True)
    assert not search.judge(apart * 2).done
    assert search.judge(apart * 6)[2:] == (True, False)
    assert search.judge(apart * 7).done, "contended pairs may count later"
    assert search.judge([Shift(TOTAL / 2, 0.001, 20.0)] * 8)[2:] == (True, True), "known to be between them"


@pytest.mark.parametrize(("sd", "least"), [(0.01, 36), (0.03, 36), (0.15, 0)])
def test_noise_gives_no_wrong_name(sd, least):
    named = 0
    for seed in range(40):
        guilty = random.Random(seed).sample(EVERY, 2)
        share = pair(*guilty) if seed % 5 == 0 else single(guilty[0])
        found, _ = bisect(share, sd=sd, seed=seed, total=0.15)
        if found.parts:
            assert found.named == {*guilty[: 1 + (seed % 5 == 0)]}
            named += 1
    assert named >= least


def test_no_component_is_named_without_an_effect():
    for seed in range(40):
        found, _ = bisect(lambda taken: float(len(taken) == 6), sd=0.02, seed=seed, total=0.1)
        assert not found.parts or len(found.named) == 6


TAGS = ["search:1", *(f"search:1.{n}" for n in range(1, 8)), "search:2"]


@pytest.mark.parametrize(
    ("slow", "share", "tags", "between", "most"),
    [
        (CONTENTS, {}, TAGS[::8], (), 0),
        *((CONTENTS, dict.fromkeys(TAGS[n:], 1.0), TAGS, (TAGS[n - 1], TAGS[n]), 3) for n in range(1, 9)),
        # The change comes in two equal steps: the tags between the steps resemble neither side.
        (CONTENTS, {**dict.fromkeys(TAGS[3:5], 0.5), **dict.fromkeys(TAGS[5:], 1.0)}, TAGS, (TAGS[2], TAGS[5]), 5),
        ("b", {}, TAGS, (), 0),
    ],
)  # fmt: skip
def test_tags_between_narrow_a_guilty_image(slow, share, tags, between, most):
    def of(taken):
        return share.get(*taken, 0.0) if {*taken} <= {*TAGS} else float(slow in taken)

    found, mixtures = bisect(of, ["a", "b", CONTENTS], tags=tags)
    assert (found.named, tuple(found.between)) == ({slow}, between)
    assert sum(not taken.isdisjoint(TAGS) for taken in mixtures) <= most
