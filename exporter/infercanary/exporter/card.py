"""One container on the page for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from infercanary.contract.vocabulary import NOBODY
from infercanary.exporter.canaries import FAILING
from infercanary.exporter.card_verdicts import drift_since, earlier_upgrades, measures_of, verdict_on
from infercanary.exporter.discovery.kills import KEPT_SECONDS
from infercanary.exporter.drawing import milliseconds, sparkline
from infercanary.exporter.history import RunSummary, baseline
from infercanary.exporter.judging.findings import NOTHING, Findings
from infercanary.exporter.markup import duration, escaped
from infercanary.exporter.polled import PolledProbe
from infercanary.exporter.tags import tag_moves
from infercanary.judge.policy import LIVE, Policy

Ended = tuple[int, float, str]
"""How often the kernel ended a container for memory, when last (a Unix time), and its image then."""


_MOST_STATES = 8  # of canaries before their first run
_SOON_SECONDS = 20.0
_NO_FAILURE = ("ok", "busy")


State = Literal[
    "not shown",
    "down",
    "not polled",
    "with a failing canary",
    "killed for memory",
    "with a failed last run",
    "regressed since an upgrade",
    "drifted without an upgrade",
    "up, with lost runs",
    "up",
]
STATES: Mapping[State, str] = {
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
"""State of a container → class in the style sheet, the worst first."""


def state_of(probe: PolledProbe, ended: Ended | None = None) -> State:
    """State of a container, by what the exporter knows itself: alerts are evaluated in Prometheus alone.

    Args:
        probe: One that is followed.
        ended: Kills by the kernel; None if there was none.
    """
    if probe.container.url is None:
        return "not polled"
    if not probe.up:
        return "down"
    reported = probe.reported.states
    if any(state in FAILING for state in reported.values()):
        return "with a failing canary"
    if ended is not None and time.time() - ended[1] <= KEPT_SECONDS:
        return "killed for memory"
    if any(  # the history outlives a canary that was renamed
        runs[-1].outcome not in _NO_FAILURE
        for name, runs in probe.history.canaries.items()
        if name in reported or not reported
    ):
        return "with a failed last run"
    if _regressed(probe):
        return "regressed since an upgrade"
    drifts = (probe.findings or NOTHING).drifts.items()
    if any(of == probe.container.replica and (drift.shift or 0.0) > 0 for (of, _), drift in drifts):
        return "drifted without an upgrade"
    return "up, with lost runs" if probe.runs_lost else "up"


def _regressed(probe: PolledProbe) -> bool:
    """Whether an upgrade made a canary worse that this container runs with the new image."""
    findings = probe.findings or NOTHING
    regressed = {canary for canary, verdict in findings.judgements.items() if verdict.state == "regressed"}
    for canary, measures in findings.measures.items():
        if any(verdict.state == "regressed" for verdict in measures.values()):
            regressed.add(canary)
    return any(probe.side(canary) == "new" for canary in regressed)


def card(
    probe: PolledProbe,
    now: float,
    state: State,
    ended: Ended | None = None,
    policy: Policy = LIVE,
    most: int = 1 << 20,
) -> str:
    """One container; ``now`` is of the monotonic clock.

    Args:
        probe: One that is followed.
        now: Seconds, of the monotonic clock.
        state: Of the container.
        ended: How often the kernel ended it for memory; None where it never did.
        policy: How many runs a baseline has.
        most: Bytes of failing canaries, canaries and environment, of which the first and the last may have a quarter
            in any case; what is more is counted.
    """
    container = probe.container
    age = (
        "no report yet" if probe.reported_at is None else f"reported {duration(now - probe.reported_at)} ago"
    )
    digest = container.image_digest or container.image_id
    # Docker shows the id in place of a tag that moved.
    name = "" if digest.removeprefix("sha256:").startswith(container.image) else container.image
    image = " · ".join(_short(reference) for reference in (name, digest) if reference)
    at = f" ({container.url})" if container.url and not probe.up else ""
    trouble = f'<p class="trouble">{escaped(f"{probe.trouble}{at}", 800)}</p>' if probe.trouble else ""
    if ended is not None:
        trouble += f'<p class="trouble">{how_it_ended(ended)}</p>'
    failures = [*_failures(probe)]
    shown, left_out = _fitting(failures, len(failures), most // 4)
    most -= _size(shown)
    trouble += shown + _more(left_out, "failing canaries")
    if probe.runs_lost:
        lost = f"{_counted(probe.runs_lost)} lost: the exporter was away for longer than the probe keeps runs"
        trouble += f'<p class="note">{lost}</p>'
    trouble += "".join(f'<p class="note">{escaped(note, 400)}</p>' for note in container.notes)
    if tag_moves(container.image):
        trouble += (
            f'<p class="note">runs {escaped(container.image)}, a tag that may be another image tomorrow</p>'
        )
    neighbours = ""
    if probe.neighbours not in ("", NOBODY) and probe.neighbours_since is not None:
        since = duration(now - probe.neighbours_since)
        neighbours = f'<p class="note">shares its GPU with {escaped(probe.neighbours)} for {since}</p>'
    findings = probe.findings or NOTHING
    place = escaped("/".join(map(str, probe.key)), 600)
    each = (
        _canary(name, probe, list(runs), findings, policy)
        + earlier_upgrades(
            findings.answers.get(name, ()), findings.judgements.get(name), f"{place}/{escaped(name)}"
        )
        for name, runs in sorted(probe.history.canaries.items())
    )
    of_environment = most // 4
    canaries, left_out = _fitting(each, len(probe.history.canaries), most - of_environment)
    of_environment = max(of_environment, most - _size(canaries))
    canaries += _more(left_out, "canaries") or ("" if canaries else _no_run(probe))
    return (
        f'<article class="{STATES[state]}"><header class="name"><h2>{escaped(container.replica)}</h2>'
        f'<span class="soft">{escaped(str(container.service_key))}</span><small class="age">{age}</small></header>'
        f'<p class="image">{image or "not from Docker"}</p>{trouble}{neighbours}{canaries}'
        f"{_environment(probe.environment, place, of_environment)}</article>"
    )


def _fitting(pieces: Iterable[str], count: int, most: int) -> tuple[str, int]:
    """The first of ``count`` pieces, up to ``most`` bytes and at least one, and how many others there are."""
    shown: list[str] = []
    for piece in pieces:
        most -= _size(piece)
        if shown and most < 0:
            break
        shown.append(piece)
    return "".join(shown), count - len(shown)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _more(count: int, what: str) -> str:
    return f'<p class="note">and {count} {what} more, in <a href="metrics">metrics</a></p>' if count else ""


def how_it_ended(ended: Ended) -> str:
    """How often the kernel ended a container for memory, and when last.

    Args:
        ended: Of one that it did end.
    """
    times, at, image = ended
    how_often = "once" if times == 1 else f"{times} times"
    of = f" with {escaped(image)}" if image else ""
    return f"the kernel ended it for memory {how_often}, last {duration(max(0.0, time.time() - at))} ago{of}"


def _failures(probe: PolledProbe) -> Iterator[str]:
    """A line for each failing canary, without the detail if its last run has one."""
    for canary, state in probe.reported.states.items() if probe.up else ():
        if state in FAILING:
            runs = probe.history.canaries.get(canary)
            is_told = runs is not None and runs[-1].outcome not in _NO_FAILURE
            detail = "" if is_told else probe.reported.failures.get(canary, "")
            words = f"{_spaced(state)}{': ' if detail else ''}{escaped(detail, 400)}"
            yield f'<p class="trouble">{escaped(canary, 120)} is {words}</p>'


def _no_run(probe: PolledProbe) -> str:
    """What a start does before its first run: a model may take minutes to load."""
    if not probe.up:
        return ""
    if not probe.reported.states:
        return _note("no run yet: it reports no canary")
    due = {"steady": _due(probe)}
    states = [
        f"{escaped(canary, 120)} is {due.get(state, _spaced(state))}"
        for canary, state in probe.reported.states.items()
        if state not in FAILING
    ]
    return _note(f"no run yet{': ' if states else ''}{', '.join(states[:_MOST_STATES])}")


def _due(probe: PolledProbe) -> str:
    """When a canary that is ready runs first: a duty cap of 1 % keeps a large model waiting for minutes."""
    every = probe.reported.interval
    if every < _SOON_SECONDS:
        return "warm, and its first run is due"
    return f"warm, and its first run comes within about {duration(every)}"


def _canary(
    name: str, probe: PolledProbe, runs: Sequence[RunSummary], findings: Findings, policy: Policy
) -> str:
    last = runs[-1]
    shown = next((run for run in reversed(runs) if run.median is not None), last)
    judgement, drift = findings.judgements.get(name), findings.drifts.get((probe.container.replica, name))
    side = probe.side(name)
    if judgement is None:
        # What the judge knows of earlier starts is shown once it looked: to count from 1 would look like a loss.
        verdict = _note(f"not judged yet: {_counted(sum(run.outcome == 'ok' for run in runs))} of this start")
    elif side == "old":
        what = "model" if judgement.changed == "model" else "image"
        verdict = _note(f"runs the old {what}; the verdict is about containers with the new one")
    elif side == "other":
        verdict = _note(
            "runs an image that the judge has no run of yet"
            if judgement.upgraded_at is None
            else "runs another image than the last verdict is about"
        )
    else:
        verdict = verdict_on(judgement, findings.sentences[name], runs, policy)
        if judgement.state == "no_baseline":
            verdict += _note(baseline(runs, policy, judgement.runs))
        verdict += measures_of(findings.measures.get(name, {}))
    trouble = ""
    if last.outcome != "ok":
        detail = f": {escaped(last.detail, 300)}" if last.detail else ""
        trouble = f'<p class="amiss">last run {_spaced(last.outcome)}{detail}</p>'
    return (
        f'<div class="canary"><span>{escaped(name, 120)}</span>'
        f'<span class="now">{milliseconds(shown.median)} <small>ms</small></span>'
        f'<span class="spread"><span><small>min </small>{milliseconds(shown.low)}</span>'
        f"<span><small>max </small>{milliseconds(shown.high)}</span></span>{sparkline(runs)}{trouble}"
        f"{verdict}{drift_since(drift) if drift is not None else ''}</div>"
    )


def _spaced(name: str) -> str:
    return escaped(name.replace("_", " "))


def _counted(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _note(words: str) -> str:
    return f'<p class="collected soft">{words}</p>'


def _environment(environment: dict[str, str], place: str, most: int) -> str:
    if not environment:
        return ""
    entries, left_out = _fitting(
        (
            f"<dt>{escaped(key, 120)}</dt><dd>{escaped(value, 600)}</dd>"
            for key, value in sorted(environment.items())
        ),
        len(environment),
        most,
    )
    if left_out:
        entries += f"<dt>and {left_out} more</dt><dd></dd>"
    return f'<details id="environment:{place}"><summary>Environment</summary><dl>{entries}</dl></details>'


def _short(reference: str) -> str:
    """An image reference, or the start of a digest, of which the whole is the title."""
    shown = reference.removeprefix("sha256:")[:12] if reference.startswith("sha256:") else reference
    return f'<code title="{escaped(reference)}">{escaped(shown)}</code>'
