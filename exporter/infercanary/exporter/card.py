"""One container on the page for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from infercanary.contract.vocabulary import NOBODY
from infercanary.exporter.card_verdicts import drift_since, earlier_upgrades, measures_of, verdict_on
from infercanary.exporter.conditions import CRITICAL, Condition
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


def card(
    probe: PolledProbe,
    now: float,
    ended: Ended | None = None,
    conditions: Sequence[Condition] = (),
    policy: Policy = LIVE,
    most: int = 1 << 20,
) -> str:
    """One container; ``now`` is of the monotonic clock.

    Args:
        probe: One that is followed.
        now: Seconds, of the monotonic clock.
        ended: How often the kernel ended it for memory; None where it never did.
        conditions: Of alerts, that hold.
        policy: How many runs a baseline has.
        most: Bytes of alerts, canaries and environment, of which the first and the last may have a quarter in any
            case; what is more is counted.
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
    holding = [*_to_show(conditions, ended)]
    alerts, left_out = _fitting(map(condition_line, holding), len(holding), most // 4)
    most -= _size(alerts)
    trouble += alerts + _more(left_out, "alerts")
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
    style = STATES[state_of(probe, conditions)].style
    return (
        f'<article class="{style}"><header class="name"><h2>{escaped(container.replica)}</h2>'
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


class _State(NamedTuple):
    style: str
    words: str


STATES = (  # the worst first
    _State("down", "down"),
    _State("down", "not polled"),
    _State("critical", "to act on now"),
    _State("failing", "with a failing canary"),
    _State("failing", "in trouble"),
    _State("failing", "slower since an upgrade"),
    _State("up", "up"),
)


IN_TROUBLE = 4


def state_of(probe: PolledProbe, conditions: Sequence[Condition]) -> int:
    """Which of ``STATES`` a container is in.

    Args:
        probe: Its probe.
        conditions: Of alerts about it, that hold.

    Returns:
        Its place among them.
    """
    if probe.container.url is None:
        return 1
    if not probe.up:
        return 0
    if any(condition.severity == CRITICAL for condition in conditions):
        return 2
    if not all(runs[-1].outcome in ("ok", "busy") for runs in probe.history.canaries.values()):
        return 3
    if conditions:
        return IN_TROUBLE
    judged = probe.findings.judgements.items() if probe.findings is not None else ()
    slower = (name for name, judgement in judged if judgement.state == "regressed")
    return 5 if any(probe.side(name) == "new" for name in slower) else 6


def _to_show(conditions: Sequence[Condition], ended: Ended | None) -> Iterator[Condition]:
    """Without those that a line beside them says in more words, and of two severities for one thing the worse."""
    worse = {(each.alert, each.labels.get("canary")) for each in conditions if each.severity == CRITICAL}
    for each in conditions:
        said = each.alert == "InferCanaryProbeDown" or (
            ended is not None and each.labels.get("reason") == "killed"
        )
        if not said and (each.severity == CRITICAL or (each.alert, each.labels.get("canary")) not in worse):
            yield each


def condition_line(condition: Condition) -> str:
    """A line, in its colour, that leads to what to do.

    Args:
        condition: Of an alert, that holds.
    """
    link = f'<a href="runbooks#{condition.anchor}">{escaped(condition.words, 400)}</a>'
    return f'<p class="condition {condition.severity}">{link}</p>'


def _no_run(probe: PolledProbe) -> str:
    """What a start does before its first run: a model may take minutes to load."""
    if not probe.up:
        return ""
    states = probe.reported.rows("infercanary_canary_state")
    due = {"steady": _due(probe)}
    now = [
        f"{escaped(labels['canary'], 120)} is {due.get(labels['state'], escaped(labels['state']))}"
        for labels, on in states
        if on
    ]
    what = ", ".join(now[:_MOST_STATES]) or "it reports no canary"
    return _note(f"no run yet: {what}")


def _due(probe: PolledProbe) -> str:
    """When a canary that is ready runs first: a duty cap of 1 % keeps a large model waiting for minutes."""
    every = next((value for _, value in probe.reported.rows("infercanary_interval_seconds")), 0.0)
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
            verdict += _note(baseline(runs, policy, judgement.runs, judgement.until))
        verdict += measures_of(findings.measures.get(name, {}))
    trouble = ""
    if last.outcome != "ok":
        detail = f": {escaped(last.detail, 300)}" if last.detail else ""
        trouble = f'<p class="amiss">last run {escaped(last.outcome.replace("_", " "))}{detail}</p>'
    return (
        f'<div class="canary"><span>{escaped(name, 120)}</span>'
        f'<span class="now">{milliseconds(shown.median)} <small>ms</small></span>'
        f'<span class="spread"><span><small>min </small>{milliseconds(shown.low)}</span>'
        f"<span><small>max </small>{milliseconds(shown.high)}</span></span>{sparkline(runs)}{trouble}"
        f"{verdict}{drift_since(drift) if drift is not None else ''}</div>"
    )


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
