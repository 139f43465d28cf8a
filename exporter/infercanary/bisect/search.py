"""Search for the guilty component: proposes the next experiment from the outcomes so far, or decides. Pure functions.

- **A mixture** has some components of B, and the others of A. The mixture's share is the shift from A to the mixture
  divided by the total shift (both as logarithms). With share 0 the mixture behaves like A, with share 1 like B.
- **Delta debugging** (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): of two
  mixtures, one nearer to A and one nearer to B, halve the difference until one component is left. This component moves
  a mixture across the middle, so it matters.
- **A name needs both directions**: A with the component of B, and B with the component of A. If either changes too
  little, the component acts together with another component. Delta debugging then continues between the mixtures that
  need the other component.
- **A wrong turn** of the search costs experiments, but gives no wrong name. Only the experiments in both directions
  decide, at an error rate that is split over all planned experiments (Bonferroni).
- **Tags between A and B** narrow a guilty image further: each experiment halves the tags between the last tag clearly
  like A and the first tag clearly like B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from scipy.special import stdtrit

from infercanary.ab.estimate import PairDecision, assumed, levels
from infercanary.bisect.components import CONTENTS
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import UNKNOWN, Shift

Components: TypeAlias = frozenset[str]
NONE = Components()

FALSE_NAMES = 0.01
"""Accepted share of searches with a wrong name."""

CONFIDENCE = 0.95
"""Confidence of displayed intervals, and of outcomes that only direct the search."""


class Outcome(NamedTuple):
    """Outcome of an experiment: a mixture compared with A."""

    taken: Components
    """Components of B in the mixture, or the tag of the mixture's image. All other components are A's."""
    pairs: Sequence[Shift]
    """Shift of each pair, mixture over A; empty if the mixture cannot run."""
    reason: str = ""
    """Reason why the mixture cannot run."""


class Part(NamedTuple):
    """A mixture's share of the total shift (1 is the whole shift), with standard error and degrees of freedom."""

    components: Components
    share: float = 0.0
    se: float = 0.0
    df: float = 1.0

    def half(self, level: float = CONFIDENCE) -> float:
        """Return half of the width of the confidence interval."""
        return self.se * float(stdtrit(self.df, (1 + level) / 2))


class Finding(NamedTuple):
    """Decision of a search."""

    named: Components
    """The guilty components, or the components that were not separated."""
    parts: Sequence[Part] = ()
    """Share of the guilty components. If two components act together, their separate shares follow in the order of the
    names. Empty if no component is guilty.
    """
    interact: bool = False
    """True if the shares of the first component and of all others surely do not add up to the total."""
    between: Sequence[str] = ()
    """The last tag like A and the first tag like B, if the image is guilty and there are tags between A and B."""


@dataclass(frozen=True)
class Search:
    """Search among the differences between A and B.

    Args:
        total: Shift of B over A in each pair of the comparison of A and B.
        restarts: Largest number of pairs in an experiment.
        tags: Tags of images from A's to B's, in order.
    """

    every: Components
    total: Sequence[Shift]
    restarts: int
    tags: Sequence[str] = ()

    @property
    def experiments(self) -> int:
        """Largest number of experiments: two halvings, three of the four experiments on two names, and the tags."""
        return 2 * (len(self.every) - 1).bit_length() + 3 + len(self.tags[2:]).bit_length()

    def decide(self, outcomes: Sequence[Outcome]) -> Components | Finding:
        """Return the next mixture (B's components, or the tag of an image), or the decision."""
        every = self.every
        known = {NONE: Part(NONE), every: Part(every, 1.0)} | {
            x.components: x for x in self.mixtures(outcomes)
        }

        def narrow(
            low: Components, high: Components, guilty: Components = NONE
        ) -> tuple[Components, Components, Components | None]:
            """Return the nearest known mixtures on both sides of the middle, and the next mixture."""
            rest = sorted(high - low)
            # The larger half first: with six components, the search then never takes more than nine experiments.
            sizes = sorted(range(1, len(rest)), key=lambda size: abs(2 * size - len(rest) - 0.5))
            halves = (low.union(rest[:size]) for size in sizes)
            half = next((x for x in halves if x not in known or math.isfinite(known[x].se)), None)
            if half in known:
                return narrow(half, high, guilty) if known[half].share < 0.5 else narrow(low, half, guilty)
            wanted = (half, guilty.union(rest), every - guilty.union(rest))
            return low, high, next((x for x in wanted if x and x not in known), None)

        low, high, following = narrow(NONE, every)
        first, partner = high - low, NONE
        if not following and (known[first].share < 0.5 or known[every - first].share >= 0.5):
            # The component acts only together with a component of ``low``, or a component above ``high`` has the same
            # effect.
            bounds = (first, high) if known[first].share < 0.5 else (low, every - first)
            low, high, following = narrow(*bounds, first)
            partner = high - low
        named = first | partner
        if following:
            return following if len(outcomes) < self.experiments else Finding(named)
        level = 1 - FALSE_NAMES / 2 / self.experiments

        def differ(a: Components, *others: Components) -> bool:
            """True if the share of a mixture differs from the sum of others, at the error rate of a name."""
            apart = abs(known[a].share - sum(known[x].share for x in others))
            return apart > math.hypot(*(known[x].half(level) for x in (a, *others)))

        forward, backward = known[named], known[every - named]
        se = math.hypot(forward.se, backward.se) / 2
        # A component is guilty if swapping it changes A or B. The first component is swapped alone, its partner
        # together with the first.
        are_guilty = [math.isfinite(se), differ(first) or differ(every, every - first)]
        parts = [Part(named, (forward.share + 1 - backward.share) / 2, se, min(forward.df, backward.df))]
        if partner:
            are_guilty += [differ(named, first) or differ(every - named, every - first)]
            alone = [known[first], known[every - first]._replace(components=partner)]
            parts += sorted(alone, key=lambda part: min(part.components))
        finding = Finding(named, parts if all(are_guilty) else (), differ(every, first, every - first))
        if finding.parts and named == {CONTENTS} and self.tags[2:]:
            return self._narrow_tags(finding, known, level)
        return finding

    def _narrow_tags(
        self, finding: Finding, known: dict[Components, Part], level: float
    ) -> Components | Finding:
        """Return the tag to measure next, or the finding with the tags around the change."""
        tags = [*self.tags]
        while tags[2:]:
            middle = len(tags) // 2
            tag = Components({tags[middle]})
            if tag not in known:
                return tag
            apart = known[tag].share - 0.5
            if abs(apart) > known[tag].half(level):
                tags = tags[middle:] if apart < 0 else tags[: middle + 1]
            else:
                tags.pop(middle)  # neither clearly like A nor clearly like B
        return finding._replace(between=tags)

    def judge(self, pairs: Sequence[Shift]) -> PairDecision:
        """Return the decision on an experiment after these pairs.

        The experiment is done once the mixture is clearly nearer to A or to B, or once the error of its share is below
        a quarter of the total shift.

        Args:
            pairs: Shift of each pair so far, mixture over A.
        """
        n, is_clear = len(pairs), False
        if n >= 2:  # same rule as for a large change in `ab`
            level = levels(range(2, self.restarts + 1), FALSE_NAMES / 2 / self.experiments)
            [mixture] = self.mixtures([Outcome(NONE, pairs)])
            is_clear = mixture.half(level[min(n, self.restarts)]) < max(0.25, abs(mixture.share - 0.5))
        return PairDecision("inconclusive", (), is_clear or n >= self.restarts, is_clear)

    def mixtures(self, outcomes: Sequence[Outcome]) -> list[Part]:
        """Return each outcome's share of the total shift. The error is infinite if the mixture cannot run."""
        total, parts = assumed(self.total, LIVE), []
        for taken, pairs, _ in outcomes:
            shift = assumed(pairs, LIVE) if pairs else UNKNOWN
            ratio = shift.log / total.log
            se = math.hypot(shift.se, ratio * total.se) / abs(total.log)
            parts.append(Part(taken, ratio, se, shift.df))
        return parts
