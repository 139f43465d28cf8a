"""What the judge found of a canary, as a part of its container's card."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from infercanary.exporter.drawing import before_and_after
from infercanary.exporter.history import RunSummary, time_left
from infercanary.exporter.judging.answers import PastVerdict
from infercanary.exporter.markup import duration, escaped
from infercanary.judge import operator_words
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import ENVIRONMENT
from infercanary.judge.operators import Operators
from infercanary.judge.origin import Origin, changed, link
from infercanary.judge.policy import Policy
from infercanary.judge.result import Result
from infercanary.judge.sentence import SENTENCE_BYTES, listed, measure_words, percent, progress
from infercanary.judge.shift import CHANGED

_MAX_EARLIER = 8  # upgrades


def verdict_on(judgement: Result, sentence: str, runs: Sequence[RunSummary], policy: Policy) -> str:
    """The sentence, and the runs before and after the upgrade.

    Args:
        judgement: On a service's last upgrade.
        sentence: The same in words.
        runs: Of the container's canary, whose pace says how long the next look takes.
        policy: How far apart starts are that are no one rollout.
    """
    images = ""
    if judgement.upgraded_at is not None:
        ago = duration(max(0.0, time.time() - judgement.upgraded_at))
        names = f"{_upgrade(judgement.baseline_image, judgement.candidate_image)}, {ago} ago"
        newest = judgement.newest_at or judgement.upgraded_at
        if newest > judgement.upgraded_at + policy.pool.gone_seconds:
            names += f", last start {duration(max(0.0, time.time() - newest))} ago"
        origin = _origin(*judgement.origins)
        how_far = progress(judgement)
        if how_far and judgement.looks.next is not None and judgement.shift is None:
            how_far += time_left(judgement.looks.next - judgement.runs, runs)
        images = f"<small>{'; '.join(filter(None, (names, origin, how_far)))}</small>"
    return (
        f'<div class="verdict {judgement.state}"><p>{escaped(sentence, 1000)}</p>{images}'
        f"{before_and_after(*judgement.medians)}"
        f"{_operators(judgement.causes.operators if judgement.state in CHANGED else None)}</div>"
    )


def _upgrade(before: str, after: str) -> str:
    """From what to what; of a new model alone, in what."""
    if before == after:
        return f"the same {escaped(before if before.startswith(ENVIRONMENT) else f'image {before}')}"
    return f"{escaped(before)} → {escaped(after)}"


def _operators(found: Operators | None) -> str:
    """Which operators a change went to, folded; the sentence has the first of them."""
    if found is None:
        return ""
    lines = "".join(f"<li>{escaped(operator_words.line(shift), 600)}</li>" for shift in found.shifts)
    words = escaped(operator_words.summary(found), 300)
    return f"<details><summary>Operators</summary><p><small>{words}</small></p><ol>{lines}</ol></details>"


def measures_of(verdicts: Mapping[str, MeasureVerdict]) -> str:
    """What the upgrade did to memory, energy and throughput, in one line: what changed first.

    Args:
        verdicts: By measure; empty gives an empty text.
    """
    if not verdicts:
        return ""
    order = ("regressed", "improved", "unconfirmed")
    each = sorted(verdicts.items(), key=lambda item: item[1].state not in order)
    worst = next((state for state in order[:2] if any(v.state == state for v in verdicts.values())), "")
    line = "; ".join(measure_words(name, verdict) for name, verdict in each)
    return f'<div class="verdict {worst}"><small>{escaped(line, 1000)}</small></div>'


def _origin(before: Origin, after: Origin) -> str:
    """Where both images came from, by their labels; with a link where those name a web address."""
    words, address = escaped(changed(before, after)), link(before, after)
    if not address:
        return words
    return f'<a href="{escaped(address, 400)}" rel="noopener noreferrer">{words or "source"}</a>'


def earlier_upgrades(answers: Sequence[PastVerdict], now: Result | None, place: str) -> str:
    """The verdicts on the upgrades before the one that is judged now.

    Args:
        answers: In order of time.
        now: The judgement of now.
        place: What tells the list from those of other canaries.
    """
    past = [answer for answer in answers if now is None or answer.upgraded_at != now.upgraded_at]
    if not past:
        return ""
    rows = "".join(
        f'<li class="{answer.state}"><time>{time.strftime("%F %R", time.gmtime(answer.upgraded_at))} UTC</time> '
        f"{_upgrade(answer.baseline_image, answer.candidate_image)}: {escaped(answer.sentence, 1000)}"
        f"{'; then rolled back' if answer.rolled_back else ''}</li>"
        for answer in reversed(past[-_MAX_EARLIER:])
    )
    return f'<details id="earlier:{place}"><summary>Earlier upgrades</summary><ol>{rows}</ol></details>'


def drift_since(drift: Drift) -> str:
    """How far a canary drifted; an empty text where it did not.

    Args:
        drift: Of one container.
    """
    if drift.shift is None or drift.onset is None:
        return ""
    state = "regressed" if drift.shift > 0 else "improved"
    host = f", host {percent(drift.host.shift)}" if drift.host is not None else ""
    changes = f"; since that day: {escaped(listed(drift.changes), SENTENCE_BYTES)}" if drift.changes else ""
    return (
        f'<div class="verdict {state}"><p>drifted {percent(drift.shift)} from the first day of this image{host}; '
        f"since {duration(max(0.0, time.time() - drift.onset))} ago, with no upgrade{changes}</p>"
        f"{_operators(drift.operators)}</div>"
    )
