"""One canary on a container's card: its last runs, and what the judge found."""

from __future__ import annotations

from typing import Any

from infercanary.exporter.history import baseline
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.polled import PolledProbe
from infercanary.judge.drift import Drift
from infercanary.judge.policy import Policy
from infercanary.pages.from_result import operators_table, verdict_document
from infercanary.pages.sentence import listed, operators_words
from infercanary.render.document import Chart, Document, Series
from infercanary.render.units import count, percent

_MAX_EARLIER = 8  # upgrades


def canary_card(name: str, probe: PolledProbe, policy: Policy) -> dict[str, Any]:
    """Return what the template ``card.html`` shows of a canary.

    Args:
        name: A canary that ran.
        probe: Its container.
        policy: Number of runs in a baseline, and time after which a rollout has ended.
    """
    runs, findings = [*probe.history.canaries[name]], probe.findings or NOTHING
    judgement, side = findings.judgements.get(name), probe.side(name)
    drift = findings.drifts.get((probe.container.replica, name), Drift())
    upgraded_at = judgement.upgraded_at if judgement is not None else None
    earlier = [answer for answer in findings.answers.get(name, ()) if answer.upgraded_at != upgraded_at]
    verdict, progress = Document(), ""
    if judgement is not None and side == "new":
        verdict = verdict_document(judgement, findings.sentences[name], findings.measures.get(name, {}))
        if judgement.state == "no_baseline":
            progress = baseline(runs, policy, judgement.runs)
    return {
        "name": name,
        "last": runs[-1],
        "shown": next((run for run in reversed(runs) if run.median is not None), runs[-1]),
        "chart": Chart(
            f"median of the last {count(len(runs), 'run')}",
            "points",
            [Series("runs", [run.median for run in runs])],
            misses=[place for place, run in enumerate(runs) if run.outcome != "ok"],
        ),
        "judgement": judgement,
        "verdict": verdict,
        "facts": {fact.label: fact for fact in verdict.facts} if upgraded_at is not None else {},
        "rollout_seconds": policy.pool.gone_seconds,
        "side": side,
        "baseline": progress,
        "ended_well": count(sum(run.outcome == "ok" for run in runs), "run"),
        "drift": _drift_document(drift, drift.shift) if drift.shift else Document(),
        "onset": drift.onset,
        "earlier": earlier[-_MAX_EARLIER:],
    }


def _drift_document(drift: Drift, shift: float) -> Document:
    known = [
        f"drifted {percent(shift)} from the first day of this image, with no upgrade",
        f"host {percent(drift.host.shift)}" if drift.host is not None else "",
        f"since that day {listed(drift.changes)}" if drift.changes else "",
        operators_words(drift.operators),
    ]
    return Document(
        verdict="regressed" if shift > 0 else "improved",
        sentence="; ".join(filter(None, known)),
        tables=[operators_table(drift.operators)],
    )
