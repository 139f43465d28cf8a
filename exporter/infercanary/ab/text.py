"""The answer as text: that of `infercanary compare`, and the cost of a start."""

from __future__ import annotations

from collections.abc import Iterator

from infercanary.ab import variant
from infercanary.ab.answer import STEPS, ArmSummary, CanaryAnswer
from infercanary.compare import text
from infercanary.compare.recording import RecordedRuns, shown
from infercanary.compare.units import short, size, value
from infercanary.judge.sentence import percent

_MOST = 16  # pairs in a row
_NAMES = {"first_report": "first report", "first_run": "first run", "time_to_steady": "steady"}


def experiment(answer: CanaryAnswer, a: RecordedRuns, b: RecordedRuns, width: int = 80) -> str:
    """Return the answer on one canary, as text for ``width`` columns.

    Args:
        answer: On one canary.
        a: A's runs that count.
        b: B's runs that count.
        width: Columns.
    """
    lines = [line for label, words in facts(answer).items() for line in text.row(label, words, width)]
    return (
        text.comparison(answer.compared, a, b, width)
        + "\n"
        + "\n".join([*lines, *cold_start(answer, width)])
        + "\n"
    )


def facts(answer: CanaryAnswer) -> dict[str, str]:
    """Return both arms, the pairs and how long it took.

    Args:
        answer: On one canary.

    Returns:
        Label → one line.
    """
    return {
        "A": side(answer.a),
        "B": side(answer.b),
        "pairs": pairs(answer),
        "took": f"{value(answer.seconds, 's')}; {ENDED[answer.ended]}",
    }


ENDED = {
    "clear": "ended when the answer was clear",
    "restarts": "ended after the last start (--restarts)",
    "budget": "ended when the time was up (--budget)",
    "interrupted": "interrupted",
}


def side(arm: ArmSummary) -> str:
    """Return the arm's name, mean and scatter.

    Args:
        arm: What is not known of it is left out.
    """
    parts = [shown(arm.name, 200)]
    if arm.settings:
        parts.append(variant.words(arm.settings))
    if arm.origin.words:
        parts.append(shown(arm.origin.words, 200))
    if arm.image_id:
        parts.append(arm.image_id.removeprefix("sha256:")[:12])
    if arm.image_bytes is not None:
        parts.append(size(arm.image_bytes))
    if arm.mean is not None:
        sd = f" (SD {value(arm.sd, 's')})" if arm.sd is not None else ""
        parts.append(f"mean {value(arm.mean, 's')}{sd}")
    if arm.start_sd is not None:
        parts.append(f"starts differ by {short(100 * arm.start_sd)} %")
    return ", ".join(parts)


def pairs(answer: CanaryAnswer) -> str:
    """Return the shift of each pair, in order of time.

    Args:
        answer: On one canary.
    """
    each = [percent(step.shift) for step in answer.pairs]
    more = f" and {len(each) - _MOST} more" if len(each) > _MOST else ""
    return ", ".join(each[:_MOST]) + more if each else "none"


def cold_start(answer: CanaryAnswer, width: int) -> Iterator[str]:
    """Yield a line for each step of the cold start.

    Args:
        answer: On one canary.
        width: Columns.

    Yields:
        Lines; none where no step is known of both arms.
    """
    label = "cold start"
    for step in STEPS:
        if step in answer.a.cold_start and step in answer.b.cold_start:
            words = f"{name(step):<13}{duration(answer.a, step)} → {duration(answer.b, step)}"
            yield from text.row(label, words, width)
            label = ""


def name(step: str) -> str:
    """Return a step's name for people.

    Args:
        step: One of ``STEPS``; any other is returned as it is.
    """
    return _NAMES.get(step, step)


def duration(arm: ArmSummary, step: str) -> str:
    """Return a step's median, and half of its range over the starts.

    Args:
        arm: One that has the step.
        step: One of ``STEPS``.
    """
    swing = f" (± {short(100 * arm.swing[step])} %)" if step in arm.swing else ""
    return f"{value(arm.cold_start[step], 's')}{swing}"
