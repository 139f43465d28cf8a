"""The page for people at ``/``: every container, the worst first. All that probes say is hostile until escaped."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import NamedTuple
from weakref import WeakKeyDictionary

import structlog

from infercanary.contract.text import REPLACEMENT, printable, shortened
from infercanary.contract.vocabulary import NOBODY
from infercanary.exporter.conditions import CRITICAL, Condition
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.drawing import before_and_after, milliseconds, sparkline
from infercanary.exporter.history import RunSummary, baseline, time_left
from infercanary.exporter.judging.answers import PastVerdict
from infercanary.exporter.judging.findings import NOTHING, Findings
from infercanary.exporter.polled import PolledProbe
from infercanary.exporter.replicas import apart, replica
from infercanary.exporter.tags import tag_moves
from infercanary.judge import operator_words
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict, measure_words
from infercanary.judge.model import ENVIRONMENT, Judgement, ServiceKey
from infercanary.judge.operators import Operators
from infercanary.judge.origin import Origin, changed, link
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.sentence import SENTENCE_BYTES, listed, percent, progress
from infercanary.judge.shift import CHANGED

log = structlog.get_logger(__name__)

Ended = tuple[int, float, str]
"""How often the kernel ended a container for memory, when last (a Unix time), and its image then."""

STYLE = files(__package__).joinpath("status.css").read_text(encoding="utf-8")
"""Of every page."""
_SCRIPT = files(__package__).joinpath("status.js").read_text(encoding="utf-8")
SCRIPT_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
"""The only script that a page may run, for its Content-Security-Policy."""
_REFRESH_SECONDS = 15
_TURN_SECONDS = 0.005
_MOST_BYTES = 16 << 20  # of the page, but for what each card has in any case
_LEAST_CARD_BYTES, _MOST_CARD_BYTES = 16 << 10, 256 << 10  # an honest one has some 10 KiB
_MAX_EARLIER = 8  # upgrades
_MOST_STATES = 8  # of canaries before their first run

_HEAD = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>InferCanary</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">
<style>{STYLE}</style></head><body>
"""
_LINKS = (
    '<nav><a href="/metrics">metrics</a><a href="/runbooks">runbooks</a>'
    '<a href="/-/healthy">healthy</a><a href="/-/ready">ready</a></nav>'
)
_SILENT = '<p class="note">{} does not answer. What is below was found before; the log says why.</p>'
_IMPAIRED = '<div class="note">{}</div>'
_GONE = '<p class="note"><span class="trouble">{} ({}) does not run: {}.</span></p>'
_BROKEN = (
    '<article class="down"><h2>{}</h2><p class="trouble">It cannot be shown: the log says why.</p></article>'
)
_EMPTY = """<article class="empty"><h2>No canaries yet</h2>
<p>Put a probe into a container, label the container, and it appears here within seconds.
Both must share a Docker network.</p>
<pre>services:
  resnet:
    labels:
      infercanary.enable: "true"
      infercanary.port: "9798"   # the default</pre>
<p>In Kubernetes, give the pod the annotation <code>infercanary.io/enable: "true"</code>.</p></article>"""


async def page(
    probes: Collection[PolledProbe],
    *,
    silent: Iterable[str],
    version: str,
    ended: Mapping[Key, Ended] | None = None,
    impaired: Iterable[Condition] = (),
    policy: Policy = LIVE,
) -> bytes:
    """The whole page; it yields to the event loop between cards. What is wrong with one card costs no other.

    Args:
        probes: What the exporter polls.
        silent: The discoveries that do not answer now, by their names.
        version: The exporter's.
        ended: Of each container that the kernel ended for memory, also of one that is gone.
        impaired: What is wrong with the exporter itself.
        policy: The numbers by which conditions of alerts hold.

    Returns:
        HTML in UTF-8.
    """
    now = time.monotonic()
    ended = ended or {}
    differ = apart({probe.key: replica(probe) for probe in probes}, policy, time.time())
    turn = _Turn()
    found: dict[Key, list[Condition]] = {}
    states = dict.fromkeys((probe.key for probe in probes), _IN_TROUBLE)
    for probe in probes:
        with _costs_one(probe):
            ended_at = ended[probe.key][1] if probe.key in ended else None
            holding = [*differ.get(probe.key, ()), *probe.conditions(policy, time.time(), ended_at)]
            states[probe.key] = _state(probe, holding)
            found[probe.key] = holding
        await turn.over()
    ordered = sorted(probes, key=lambda probe: (states[probe.key], probe.key))
    parts = [_HEAD, _top(states.values()), *(_SILENT.format(_text(source)) for source in silent)]
    # Of discoveries the lines above say which.
    parts += [_IMPAIRED.format(_condition(each)) for each in impaired if each.labels["reason"] != "discovery"]
    here = {probe.key for probe in ordered}
    parts += [
        _GONE.format(_text(name), _text(str(ServiceKey(namespace, service))), _ended(how))
        for (namespace, service, name), how in sorted(ended.items())
        if (namespace, service, name) not in here
    ]
    most = max(_LEAST_CARD_BYTES, min(_MOST_CARD_BYTES, _MOST_BYTES // max(1, len(ordered))))
    cards: list[bytes] = []
    for probe in ordered:
        text = _BROKEN.format(_text(probe.container.replica))
        if probe.key in found:
            with _costs_one(probe):
                text = card(probe, now, ended.get(probe.key), found[probe.key], policy, most)
        cards.append(text.encode())  # as text, one odd character would make it four times as long in memory
        await turn.over()
    footer = (
        f"<footer><small>InferCanary {_text(version)} · refreshes every {_REFRESH_SECONDS} s</small></footer>"
    )
    end = f"<script>{_SCRIPT}</script></body></html>\n"
    begin = "\n".join([*parts, "<main>"]).encode()
    return b"\n".join(
        [begin, *cards, "\n".join(["" if ordered else _EMPTY, "</main>", footer, end]).encode()]
    )


class _Turn:
    """Of the event loop, in which others wait."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _TURN_SECONDS

    async def over(self) -> None:
        """Let others have theirs, if it is over."""
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + _TURN_SECONDS


_faults: WeakKeyDictionary[PolledProbe, type[Exception]] = WeakKeyDictionary()  # that the log has


@contextmanager
def _costs_one(probe: PolledProbe) -> Iterator[None]:
    """A fault of ours with what one probe reports must not take the page from the others; it is logged once."""
    try:
        yield
    except Exception as error:
        if _faults.get(probe) is not type(error):
            _faults[probe] = type(error)
            log.exception("a container is not shown by a fault of the exporter", **probe.identity)


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
    age = "no report yet" if probe.reported_at is None else f"reported {_age(now - probe.reported_at)} ago"
    digest = container.image_digest or container.image_id
    image = " · ".join(_short(reference) for reference in (container.image, digest) if reference)
    trouble = f'<p class="trouble">{_text(probe.trouble, 400)}</p>' if probe.trouble else ""
    if ended is not None:
        trouble += f'<p class="trouble">{_ended(ended)}</p>'
    holding = [*_to_show(conditions, ended)]
    alerts, left_out = _fitting(map(_condition, holding), len(holding), most // 4)
    most -= _size(alerts)
    trouble += alerts + _more(left_out, "alerts")
    trouble += "".join(f'<p class="note">{_text(note, 400)}</p>' for note in container.notes)
    if tag_moves(container.image):
        trouble += (
            f'<p class="note">runs {_text(container.image)}, a tag that may be another image tomorrow</p>'
        )
    neighbours = ""
    if probe.neighbours not in ("", NOBODY) and probe.neighbours_since is not None:
        since = _age(now - probe.neighbours_since)
        neighbours = f'<p class="note">shares its GPU with {_text(probe.neighbours)} for {since}</p>'
    findings = probe.findings or NOTHING
    place = _text("/".join(map(str, probe.key)), 600)
    each = (
        _canary(name, probe, list(runs), findings, policy)
        + _earlier(findings.answers.get(name, ()), findings.judgements.get(name), f"{place}/{_text(name)}")
        for name, runs in sorted(probe.history.canaries.items())
    )
    of_environment = most // 4
    canaries, left_out = _fitting(each, len(probe.history.canaries), most - of_environment)
    of_environment = max(of_environment, most - _size(canaries))
    canaries += _more(left_out, "canaries") or ("" if canaries else _no_run(probe))
    style = _STATES[_state(probe, conditions)].style
    return (
        f'<article class="{style}"><header class="name"><h2>{_text(container.replica)}</h2>'
        f'<span class="soft">{_text(str(container.service_key))}</span><small class="age">{age}</small></header>'
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
    return f'<p class="note">and {count} {what} more, in <a href="/metrics">metrics</a></p>' if count else ""


def _ended(ended: Ended) -> str:
    times, at, image = ended
    how_often = "once" if times == 1 else f"{times} times"
    of = f" with {_text(image)}" if image else ""
    return f"the kernel ended it for memory {how_often}, last {_age(max(0.0, time.time() - at))} ago{of}"


class _State(NamedTuple):
    style: str
    words: str


_STATES = (  # the worst first
    _State("down", "down"),
    _State("down", "not polled"),
    _State("critical", "to act on now"),
    _State("failing", "with a failing canary"),
    _State("failing", "in trouble"),
    _State("failing", "slower since an upgrade"),
    _State("up", "up"),
)


_IN_TROUBLE = 4


def _state(probe: PolledProbe, conditions: Sequence[Condition]) -> int:
    """Which of the states it is in."""
    if probe.container.url is None:
        return 1
    if not probe.up:
        return 0
    if any(condition.severity == CRITICAL for condition in conditions):
        return 2
    if not all(runs[-1].outcome in ("ok", "busy") for runs in probe.history.canaries.values()):
        return 3
    if conditions:
        return _IN_TROUBLE
    judged = probe.findings.judgements.items() if probe.findings is not None else ()
    slower = (name for name, judgement in judged if judgement.state == "regressed")
    return 5 if any(probe.side(name) == "new" for name in slower) else 6


def _top(states: Iterable[int]) -> str:
    counts = Counter(states)
    tally = " · ".join(
        f'<span class="{_STATES[state].style}"><b>{count}</b> {_STATES[state].words}</span>'
        for state, count in sorted(counts.items())
    )
    return f'<header class="top"><h1>InferCanary</h1><p class="tally soft">{tally}</p>{_LINKS}</header>'


def _to_show(conditions: Sequence[Condition], ended: Ended | None) -> Iterator[Condition]:
    """Without those that a line beside them says in more words, and of two severities for one thing the worse."""
    worse = {(each.alert, each.labels.get("canary")) for each in conditions if each.severity == CRITICAL}
    for each in conditions:
        said = each.alert == "InferCanaryProbeDown" or (
            ended is not None and each.labels.get("reason") == "killed"
        )
        if not said and (each.severity == CRITICAL or (each.alert, each.labels.get("canary")) not in worse):
            yield each


def _condition(condition: Condition) -> str:
    """A line, in its colour, that leads to what to do."""
    link = f'<a href="/runbooks#{condition.anchor}">{_text(condition.words, 400)}</a>'
    return f'<p class="condition {condition.severity}">{link}</p>'


_DUE = {"steady": "warm, and its first run is due"}
"""What a state of a canary is called before its first run."""


def _no_run(probe: PolledProbe) -> str:
    """What a start does before its first run: a model may take minutes to load."""
    if not probe.up:
        return ""
    states = probe.reported.rows("infercanary_canary_state")
    now = [
        f"{_text(labels['canary'], 120)} is {_DUE.get(labels['state'], _text(labels['state']))}"
        for labels, on in states
        if on
    ]
    what = ", ".join(now[:_MOST_STATES]) or "it reports no canary"
    return _note(f"no run yet: {what}")


def _canary(
    name: str, probe: PolledProbe, runs: Sequence[RunSummary], findings: Findings, policy: Policy
) -> str:
    last = runs[-1]
    shown = next((run for run in reversed(runs) if run.median is not None), last)
    judgement, drift = findings.judgements.get(name), findings.drifts.get((probe.container.replica, name))
    side = probe.side(name)
    if judgement is None:
        verdict = _note(baseline(runs, policy))
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
        verdict = _verdict(judgement, findings.sentences[name], runs, policy)
        if judgement.state == "no_baseline":
            verdict += _note(baseline(runs, policy, judgement.runs, judgement.until))
        verdict += _measures(findings.measures.get(name, {}))
    trouble = ""
    if last.outcome != "ok":
        detail = f": {_text(last.detail, 300)}" if last.detail else ""
        trouble = f'<p class="amiss">last run {_text(last.outcome.replace("_", " "))}{detail}</p>'
    return (
        f'<div class="canary"><span>{_text(name, 120)}</span>'
        f'<span class="now">{milliseconds(shown.median)} <small>ms</small></span>'
        f'<span class="spread"><span><small>min </small>{milliseconds(shown.low)}</span>'
        f"<span><small>max </small>{milliseconds(shown.high)}</span></span>{sparkline(runs)}{trouble}"
        f"{verdict}{_drift(drift) if drift is not None else ''}</div>"
    )


def _note(words: str) -> str:
    return f'<p class="collected soft">{words}</p>'


def _verdict(judgement: Judgement, sentence: str, runs: Sequence[RunSummary], policy: Policy) -> str:
    """The sentence, and the runs before and after the upgrade."""
    images = ""
    if judgement.upgraded_at is not None:
        ago = _age(max(0.0, time.time() - judgement.upgraded_at))
        names = f"{_upgrade(judgement.baseline_image, judgement.candidate_image)}, {ago} ago"
        newest = judgement.newest_at or judgement.upgraded_at
        if newest > judgement.upgraded_at + policy.gone_seconds:
            names += f", last start {_age(max(0.0, time.time() - newest))} ago"
        origin = _origin(judgement.baseline_origin, judgement.candidate_origin)
        how_far = progress(judgement)
        if how_far and judgement.next_look is not None and judgement.shift is None:
            how_far += time_left(judgement.next_look - judgement.runs, runs, policy)
        images = f"<small>{'; '.join(filter(None, (names, origin, how_far)))}</small>"
    return (
        f'<div class="verdict {judgement.state}"><p>{_text(sentence, 1000)}</p>{images}'
        f"{before_and_after(*judgement.medians)}"
        f"{_operators(judgement.causes.operators if judgement.state in CHANGED else None)}</div>"
    )


def _upgrade(before: str, after: str) -> str:
    """From what to what; of a new model alone, in what."""
    if before == after:
        return f"the same {_text(before if before.startswith(ENVIRONMENT) else f'image {before}')}"
    return f"{_text(before)} → {_text(after)}"


def _operators(found: Operators | None) -> str:
    """Which operators a change went to, folded; the sentence has the first of them."""
    if found is None:
        return ""
    lines = "".join(f"<li>{_text(operator_words.line(shift), 600)}</li>" for shift in found.shifts)
    words = _text(operator_words.summary(found), 300)
    return f"<details><summary>Operators</summary><p><small>{words}</small></p><ol>{lines}</ol></details>"


def _measures(verdicts: Mapping[str, MeasureVerdict]) -> str:
    """What the upgrade did to memory, energy and throughput, in one line: what changed first."""
    if not verdicts:
        return ""
    order = ("regressed", "improved", "confirming")
    each = sorted(verdicts.items(), key=lambda item: item[1].state not in order)
    worst = next((state for state in order[:2] if any(v.state == state for v in verdicts.values())), "")
    line = "; ".join(measure_words(name, verdict) for name, verdict in each)
    return f'<div class="verdict {worst}"><small>{_text(line, 1000)}</small></div>'


def _origin(before: Origin, after: Origin) -> str:
    """Where both images came from, by their labels; with a link where those name a web address."""
    words, address = _text(changed(before, after)), link(before, after)
    if not address:
        return words
    return f'<a href="{_text(address, 400)}" rel="noopener noreferrer">{words or "source"}</a>'


def _earlier(answers: Sequence[PastVerdict], now: Judgement | None, place: str) -> str:
    """The verdicts on the upgrades before the one that is judged now."""
    past = [answer for answer in answers if now is None or answer.upgraded_at != now.upgraded_at]
    if not past:
        return ""
    rows = "".join(
        f'<li class="{answer.state}"><time>{time.strftime("%F %R", time.gmtime(answer.upgraded_at))} UTC</time> '
        f"{_upgrade(answer.baseline_image, answer.candidate_image)}: {_text(answer.sentence, 1000)}"
        f"{'; then withdrawn' if answer.withdrawn else ''}</li>"
        for answer in reversed(past[-_MAX_EARLIER:])
    )
    return f'<details id="earlier:{place}"><summary>Earlier upgrades</summary><ol>{rows}</ol></details>'


def _drift(drift: Drift) -> str:
    if drift.shift is None or drift.onset is None:
        return ""
    state = "regressed" if drift.shift > 0 else "improved"
    host = f", host {percent(drift.host.shift)}" if drift.host is not None else ""
    changes = f"; since that day: {_text(listed(drift.changes), SENTENCE_BYTES)}" if drift.changes else ""
    return (
        f'<div class="verdict {state}"><p>drifted {percent(drift.shift)} from the first day of this image{host}; '
        f"since {_age(max(0.0, time.time() - drift.onset))} ago, with no upgrade{changes}</p>"
        f"{_operators(drift.operators)}</div>"
    )


def _environment(environment: dict[str, str], place: str, most: int) -> str:
    if not environment:
        return ""
    entries, left_out = _fitting(
        (
            f"<dt>{_text(key, 120)}</dt><dd>{_text(value, 600)}</dd>"
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
    return f'<code title="{_text(reference)}">{_text(shown)}</code>'


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _text(value: str, most: int = 200) -> str:
    """``value`` for HTML, cut to ``most`` characters, and without what could reorder or hide text."""
    return html.escape(printable(shortened(value, most), replacement=REPLACEMENT))
