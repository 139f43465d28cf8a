"""Document of an experiment: the comparison, both arms, each pair of starts, and each step of a deployment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from infercanary.ab.answer import ExperimentAnswer
from infercanary.ab.experiment import Ended
from infercanary.ab.sides import words
from infercanary.ab.turn import ArmSummary
from infercanary.compare.document import comparison_document
from infercanary.compare.recording import RecordedRuns
from infercanary.contract.vocabulary import COLD_START
from infercanary.judge import origin
from infercanary.render.document import Document, Fact, Table
from infercanary.render.units import count, percent, short, size, value

STEPS = ("pull", "start", "first_answer", *COLD_START)
"""Steps of a deployment. ``pull``: pull of a missing image. ``start``: start of a container. ``first_answer``: from the
start request to the first answered inference. All other steps belong to the cold start.
"""

ENDED: Mapping[Ended, str] = {
    "clear": "ended when the answer was clear",
    "restarts": "ended after the last start (--restarts)",
    "budget": "ended when the time was up (--budget)",
    "interrupted": "interrupted",
}


def experiment_document(answer: ExperimentAnswer, a: RecordedRuns, b: RecordedRuns) -> Document:
    """Return the document on one canary.

    Args:
        answer: Answer on the canary.
        a: A's counted runs.
        b: B's counted runs.
    """
    compared = comparison_document(answer, a, b)
    arms = (answer.a, answer.b)
    steps = [step for step in STEPS if any(step in arm.cold_start for arm in arms)]
    origins = answer.a.origin, answer.b.origin
    rows = [(value(pair.a, "s"), value(pair.b, "s"), percent(pair.shift)) for pair in answer.pairs]
    return msgspec.structs.replace(
        compared,
        facts=[
            Fact("A", _arm(answer.a)),
            Fact("B", _arm(answer.b)),
            Fact("commits", origin.changed(*origins), link=origin.link(*origins)),
            Fact("took", f"{value(answer.seconds, 's')}; {ENDED[answer.ended]}"),
            *(Fact(step.replace("_", " "), " → ".join(_step(arm, step) for arm in arms)) for step in steps),
            *(fact for fact in compared.facts if fact.label not in ("baseline", "candidate")),
        ],
        tables=[*compared.tables, Table("pairs of starts in order of time", ("A", "B", "shift"), rows)],
        # The sides took turns, so a chart in order of time would mislead.
        charts=[chart for chart in compared.charts if chart.kind == "distributions"],
    )


def _arm(arm: ArmSummary) -> str:
    """Return the known facts about the arm: name, settings, image, mean and scatter."""
    parts = (
        arm.name,
        words(arm.settings),
        arm.origin.words,
        arm.image_id.removeprefix("sha256:")[:12],
        "" if arm.image_bytes is None else size(arm.image_bytes),
        f"{count(arm.runs, 'run')} of {count(arm.starts, 'start')}",
        f"mean {value(arm.mean, 's')} (SD {value(arm.sd, 's')})",
    )
    return ", ".join(filter(None, parts))


def _step(arm: ArmSummary, step: str) -> str:
    """Return the median duration of a step, and half of the range of durations."""
    if step not in arm.cold_start:
        return "not pulled" if step == "pull" else "unknown"
    swing = f" (± {short(100 * arm.swing[step])} %)" if step in arm.swing else ""
    return f"{value(arm.cold_start[step], 's')}{swing}"
