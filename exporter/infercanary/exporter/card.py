"""One container on the status page: its state, and what its template shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from infercanary.contract.vocabulary import NOBODY
from infercanary.exporter.canaries import FAILING
from infercanary.exporter.canary_card import canary_card
from infercanary.exporter.discovery.kills import KEPT_SECONDS
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.polled import PolledProbe
from infercanary.exporter.tags import tag_moves
from infercanary.judge.policy import Policy

Ended = tuple[int, float, str]
"""Memory kills of a container: number, time of the last one (Unix), and its image then."""
MOST_CANARIES = 16
"""Number of canaries on a card, as many as have a history."""

STATES: Mapping[str, str] = {
    "not shown": "down",
    "down": "down",
    "not polled": "down",
    "with a failing canary": "critical",
    "killed for memory": "failing",
    "with a failed last run": "failing",
    "regressed since an upgrade": "failing",
    "drifted without an upgrade": "failing",
    "up, with lost runs": "up",
    "up": "up",
}
"""State of a container → class in the stylesheet, the worst first."""


def state_of(probe: PolledProbe, kill: Ended | None = None) -> str:
    """Return the worst state that holds, by what the exporter knows itself: alerts are evaluated in Prometheus.

    Args:
        probe: A followed container.
        kill: Its memory kills; None if there was none.
    """
    reported, findings = probe.reported.states, probe.findings or NOTHING
    verdicts = [(canary, verdict.state) for canary, verdict in findings.judgements.items()]
    verdicts += [(canary, v.state) for canary, each in findings.measures.items() for v in each.values()]
    holds = {
        "not polled": probe.container.url is None,
        "down": not probe.up,
        "with a failing canary": any(state in FAILING for state in reported.values()),
        "killed for memory": kill is not None and time.time() - kill[1] <= KEPT_SECONDS,
        # The history outlives a canary that was renamed.
        "with a failed last run": any(name in reported or not reported for name in _failed_last(probe)),
        "regressed since an upgrade": any(
            state == "regressed" and probe.side(canary) == "new" for canary, state in verdicts
        ),
        "drifted without an upgrade": any(
            container == probe.container.replica and (drift.shift or 0.0) > 0
            for (container, _), drift in findings.drifts.items()
        ),
        "up, with lost runs": probe.runs_lost > 0,
    }
    return next((state for state, is_true in holds.items() if is_true), "up")


def card(probe: PolledProbe, policy: Policy, most: int = MOST_CANARIES) -> dict[str, Any]:
    """Return what the template ``card.html`` shows of a container, besides its state and its memory kills.

    Args:
        probe: A followed container.
        policy: Number of runs in a baseline.
        most: Number of canaries that are shown, to which other lists are cut, too; the others are counted.
    """
    container, key = probe.container, "/".join(map(str, probe.key))
    digest = container.image_digest or container.image_id
    # Docker shows the id in place of a tag that moved.
    image = "" if digest.removeprefix("sha256:").startswith(container.image) else container.image
    states, failed = probe.reported.states if probe.up else {}, _failed_last(probe)
    # A failed last run is shown by its canary.
    details = {name: text for name, text in probe.reported.failures.items() if name not in failed}
    return {
        "probe": probe,
        "container": container,
        "key": key,
        "image": image,
        "digest": digest,
        "tag_moves": tag_moves(container.image),
        "failing": [(name, state, details.get(name)) for name, state in states.items() if state in FAILING],
        "waiting": [(name, state) for name, state in states.items() if state not in FAILING],
        "has_neighbours": probe.neighbours not in ("", NOBODY) and probe.neighbours_since is not None,
        "canaries": [canary_card(name, probe, policy) for name in sorted(probe.history.canaries)[:most]],
        "most": most,
        "now": time.time(),
        "clock": time.monotonic(),
    }


def _failed_last(probe: PolledProbe) -> set[str]:
    return {name for name, runs in probe.history.canaries.items() if runs[-1].outcome not in ("ok", "busy")}
