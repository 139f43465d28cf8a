"""Card of one container on the status page: the container's state, and the values for the template."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from infercanary.contract.vocabulary import NOBODY
from infercanary.exporter.discovery.kills import KEPT_SECONDS
from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.probe_state import PolledProbe
from infercanary.exporter.report_facts import FAILING
from infercanary.exporter.tags import tag_moves
from infercanary.judge.drift import Drift
from infercanary.judge.identity import image_name
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Result
from infercanary.pages.from_result import operators_table, verdict_document
from infercanary.pages.sentence import benchmark_words, listed, operators_words
from infercanary.render.document import Chart, Document, Series
from infercanary.render.units import count, percent

Ended = tuple[int, float, str]
"""Memory kills of a container: number, Unix time of the last kill, and image at that time."""
MOST_CANARIES = 16
"""Maximum number of canaries on a card. History keeps the same number of canaries."""
_NOT_JUDGED = Finding(result=Result(state="no_baseline"), sentence="")

STATES: Mapping[str, str] = {
    "not shown": "down",
    "down": "down",
    "not polled": "down",
    "with a failing canary": "critical",
    "killed for memory": "failing",
    "regressed since an upgrade": "failing",
    "drifted without an upgrade": "failing",
    "up": "up",
}
"""Stylesheet class by state of a container, the worst state first."""


def state_of(probe: PolledProbe, kill: Ended | None = None) -> str:
    """Return the worst state of a container for the status page. Prometheus itself evaluates alerts from the metrics.

    Args:
        probe: A followed container.
        kill: Memory kills of the container; None if it has none.
    """
    findings = probe.findings.values()
    judged = [finding for finding in findings if _side(finding, probe) == "new"]
    states: set[str] = {finding.result.state for finding in judged}
    states |= {verdict.state for finding in judged for verdict in finding.measures.values()}
    drifts = [_drift(finding, probe).shift or 0.0 for finding in findings]
    holds = {
        "not polled": probe.container.url is None,
        "down": not probe.up,
        "with a failing canary": not {*FAILING}.isdisjoint(probe.reported.states.values()),
        "killed for memory": kill is not None and time.time() - kill[1] <= KEPT_SECONDS,
        "regressed since an upgrade": "regressed" in states,
        "drifted without an upgrade": max(drifts, default=0.0) > 0,
        "up": True,
    }
    return next(state for state, is_true in holds.items() if is_true)


def card(probe: PolledProbe, most: int) -> dict[str, Any]:
    """Return the values for the template ``card.html``, except state and memory kills.

    Args:
        probe: A followed container.
        most: Maximum number of canaries, and of entries in other lists; the rest is counted.
    """
    container = probe.container
    digest = container.image_digest or container.image_id
    return {
        "probe": probe,
        "container": container,
        "key": "/".join(probe.key),
        # Docker lists an image id in place of a tag that was moved to another image.
        "image": "" if digest.removeprefix("sha256:").startswith(container.image) else container.image,
        "digest": digest,
        "tag_moves": tag_moves(container.image),
        "states": probe.reported.states if probe.up else {},
        "failing_states": FAILING,
        "has_neighbours": probe.neighbours not in ("", NOBODY),
        "canaries": [_canary(name, probe) for name in sorted(probe.history)[:most]],
        "most": most,
        "pool": LIVE.pool,
        "now": time.time(),
        "clock": time.monotonic(),
    }


def _canary(name: str, probe: PolledProbe) -> dict[str, Any]:
    runs = probe.history[name]
    finding = probe.findings.get(name, _NOT_JUDGED)
    result, side, drift = finding.result, _side(finding, probe), _drift(finding, probe)
    verdict = Document()
    if finding.sentence and side == "new":
        verdict = verdict_document(result, finding.sentence, finding.measures)
    earlier = [past for past in finding.answers if past.upgraded_at != result.upgraded_at]
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
        "is_judged": finding is not _NOT_JUDGED,
        "judgement": result,
        "side": side,
        "verdict": verdict,
        "benchmark": benchmark_words(result),
        "facts": {fact.label: fact for fact in verdict.facts} if result.upgraded_at is not None else {},
        "good_runs": sum(run.outcome == "ok" for run in runs),
        "drift": _drift_document(drift),
        "onset": drift.onset,
        "earlier": earlier,
    }


def _side(finding: Finding, probe: PolledProbe) -> Literal["old", "new", "other"]:
    """Return the side of a container in the last upgrade of a canary.

    ``new``: the verdict is about the container's image, even without an upgrade. ``old``: the container runs the old
    image. ``other``: any other image, for example an image without runs.
    """
    if probe.start is None:
        return "other"
    sides, result = finding.sides, finding.result
    boot, image = (probe.start.container, probe.start.boot_id), image_name(probe.start)
    # Decide by the start. If the judge does not know the start (a new start, or a judge on another host), decide by the
    # image.
    if boot in sides.old - sides.new:
        return "old"
    if boot in (sides.new if result.upgraded_at else sides.others) or image == result.candidate_image:
        return "new"
    return "old" if image == result.baseline_image else "other"


def _drift(finding: Finding, probe: PolledProbe) -> Drift:
    return finding.drifts.get(probe.container.replica, Drift())


def _drift_document(drift: Drift) -> Document:
    if not drift.shift:
        return Document()
    parts = [
        f"drifted {percent(drift.shift)} from the first day of this image, with no upgrade",
        f"host {percent(drift.host.shift)}" if drift.host is not None else "",
        f"since that day {listed(drift.changes)}" if drift.changes else "",
        operators_words(drift.operators),
    ]
    return Document(
        verdict="regressed" if drift.shift > 0 else "improved",
        sentence="; ".join(filter(None, parts)),
        tables=[operators_table(drift.operators)],
    )
