"""What is known of a service, as one value that is replaced as a whole, so that no reader sees half of a change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from infercanary.contract.measures import SPREAD
from infercanary.exporter.judging.answers import PastVerdict
from infercanary.exporter.judging.sides import Sides, sides
from infercanary.judge import drift
from infercanary.judge.drift import Drift
from infercanary.judge.measures import Measures, MeasureVerdict
from infercanary.judge.model import Start
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import NO_RESTART
from infercanary.judge.restarts import restarts_before
from infercanary.judge.result import Result
from infercanary.judge.shift import CHANGED
from infercanary.judge.upgrade import select
from infercanary.judge.verdict import Judge, Trials
from infercanary.pages.sentence import measure_words, sentence

_TRIALS = 2  # in one judgement: after a restart of the exporter all of them are to be made again


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one service, by canary; of what was never looked for there is no entry."""

    judgements: Mapping[str, Result] = {}
    sentences: Mapping[str, str] = {}
    """Each judgement in words, for the log, the status page and the metrics."""
    drifts: Mapping[tuple[str, str], Drift] = {}
    """By container and canary."""
    answers: Mapping[str, tuple[PastVerdict, ...]] = {}
    trials: Mapping[str, Trials] = {}
    """The judge's own A/A tests."""
    measures: Mapping[str, Mapping[str, MeasureVerdict]] = {}
    """By canary and measure: memory, energy, the throughput of a load."""
    sides: Mapping[str, Sides] = {}
    """Which starts each judgement is about."""

    def judged(
        self,
        canary: str,
        starts: Sequence[Start],
        siblings: Sequence[Start],
        policy: Policy,
        *,
        drift_alone: bool = False,
    ) -> Findings:
        """With a canary judged on all that is known of it.

        Args:
            canary: Its name.
            starts: Of its service, in order of time, with its runs.
            siblings: Starts of other services, on the hosts of these.
            policy: The numbers that decide.
            drift_alone: The last verdict on the latency stands, unless it is about another upgrade than the last one is
                now: an image may have been rolled back.

        Returns:
            Findings that differ in this canary alone.
        """
        known, judge = self.judgements.get(canary), Judge(policy)
        upgrade = select(starts).upgrade if drift_alone else None
        if not (drift_alone and known and known.upgraded_at == (upgrade.at if upgrade else None)):
            known = judge.verdict(starts, siblings, canary)
        drifts = {key: found for key, found in self.drifts.items() if key[1] != canary}
        of_container: dict[str, list[Start]] = {}
        for start in starts:
            of_container.setdefault(start.generation.container, []).append(start)
        for container, own in of_container.items():
            same = [s for s in own if s.work == own[-1].work]
            # With one start alone, nothing was restarted in between.
            restarts = restarts_before(own[-1], starts, policy.pool) if len(same) > 1 else NO_RESTART
            beside = [s for s in siblings if s.generation.host == own[-1].generation.host]
            drifts[container, canary] = drift.detect(same, beside, canary, restarts, policy)
        measures = Measures(policy).judge(starts, siblings)
        spread = measures.get(SPREAD.name)
        also = [measure_words(SPREAD.name, spread)] if spread and spread.state in CHANGED else []
        tried = judge.trials(starts, self.trials.get(canary, {}), _TRIALS)
        return msgspec.structs.replace(
            self,
            judgements={**self.judgements, canary: known},
            sentences={**self.sentences, canary: sentence(known, also=also)},
            drifts=drifts,
            trials={**self.trials, canary: tried},
            measures={
                **self.measures,
                canary: measures,
            },
            sides={**self.sides, canary: sides(starts)},
        )

    def counted(self, canary: str, runs: int) -> Findings:
        """With so many runs of the new image; the finding is the same.

        Args:
            canary: One that was judged.
            runs: That count.

        Returns:
            Findings that differ in this number alone.
        """
        judgement = msgspec.structs.replace(self.judgements[canary], runs=runs)
        return msgspec.structs.replace(self, judgements={**self.judgements, canary: judgement})

    def answered(self, canary: str, answers: tuple[PastVerdict, ...]) -> Findings:
        """With the last verdict on each upgrade of a canary.

        Args:
            canary: The name.
            answers: The oldest first.

        Returns:
            Findings that differ in this canary alone.
        """
        return msgspec.structs.replace(self, answers={**self.answers, canary: answers})

    def only(self, canaries: Collection[str]) -> Findings:
        """Without what is known of any other canary.

        Args:
            canaries: Names; those without findings may be among them.

        Returns:
            A part of the findings.
        """
        return Findings(
            judgements={canary: found for canary, found in self.judgements.items() if canary in canaries},
            sentences={canary: found for canary, found in self.sentences.items() if canary in canaries},
            drifts={key: found for key, found in self.drifts.items() if key[1] in canaries},
            answers={canary: found for canary, found in self.answers.items() if canary in canaries},
            trials={canary: found for canary, found in self.trials.items() if canary in canaries},
            measures={canary: found for canary, found in self.measures.items() if canary in canaries},
            sides={canary: found for canary, found in self.sides.items() if canary in canaries},
        )


NOTHING = Findings()
