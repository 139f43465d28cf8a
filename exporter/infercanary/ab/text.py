"""The answer as text: that of `infercanary compare`, and the cost of a start."""

from __future__ import annotations

from infercanary.ab import sides
from infercanary.ab.answer import STEPS, ArmSummary, CanaryAnswer
from infercanary.compare import text
from infercanary.compare.recording import RecordedRuns, shown
from infercanary.compare.units import short, size, value
from infercanary.judge.sentence import percent

_MOST = 16  # pairs in a row
_NAMES = {"first_answer": "first answer", "first_run": "first run", "time_to_steady": "steady"}


def experiment(answer: CanaryAnswer, a: RecordedRuns, b: RecordedRuns, width: int = 80) -> str:
    """Return the answer on one canary, as text for ``width`` columns.

    Args:
        answer: On one canary.
        a: A's runs that count.
        b: B's runs that count.
        width: Columns.
    """
    lines = text.rows(facts(answer).items(), width)
    return f"{text.comparison(answer.compared, a, b, width)}\n" + "\n".join(lines) + "\n"


def facts(answer: CanaryAnswer) -> dict[str, str]:
    """Return both arms, the pairs, how long it took, and each step of a deployment that is known of an arm.

    Args:
        answer: On one canary.

    Returns:
        Label → one line.
    """
    arms = (answer.a, answer.b)
    return {
        "A": side(answer.a),
        "B": side(answer.b),
        "pairs": pairs(answer),
        "took": f"{value(answer.seconds, 's')}; {ENDED[answer.ended]}",
        **{
            _NAMES.get(step, step): " → ".join(_duration(arm, step) for arm in arms)
            for step in STEPS
            if any(step in arm.cold_start for arm in arms)
        },
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
    sd = f" (SD {value(arm.sd, 's')})" if arm.sd is not None else ""
    parts = (
        shown(arm.name, 200),
        sides.words(arm.settings),
        shown(arm.origin.words, 200),
        arm.image_id.removeprefix("sha256:")[:12],
        size(arm.image_bytes) if arm.image_bytes is not None else "",
        f"mean {value(arm.mean, 's')}{sd}" if arm.mean is not None else "",
        f"starts differ by {short(100 * arm.start_sd)} %" if arm.start_sd is not None else "",
    )
    return ", ".join(filter(None, parts))


def pairs(answer: CanaryAnswer) -> str:
    """Return the shift of each pair, in order of time.

    Args:
        answer: On one canary.
    """
    each = [percent(step.shift) for step in answer.pairs]
    more = f" and {len(each) - _MOST} more" if len(each) > _MOST else ""
    return ", ".join(each[:_MOST]) + more if each else "none"


def _duration(arm: ArmSummary, step: str) -> str:
    """Return the median of a step, and half of its range."""
    if step not in arm.cold_start:
        return "not pulled" if step == "pull" else "not known"
    swing = f" (± {short(100 * arm.swing[step])} %)" if step in arm.swing else ""
    return f"{value(arm.cold_start[step], 's')}{swing}"
