"""The page for people at ``/``: every container, the worst first. All that probes say is hostile until escaped."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from weakref import WeakKeyDictionary

import structlog

from infercanary.exporter.card import STATES, Ended, State, card, how_it_ended, state_of
from infercanary.exporter.departed import Gone
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.markup import duration, escaped
from infercanary.exporter.polled import PolledProbe
from infercanary.judge.model import ServiceKey
from infercanary.judge.policy import LIVE, Policy

log = structlog.get_logger(__name__)


STYLE = files(__package__).joinpath("status.css").read_text(encoding="utf-8")
"""Of every page."""
_SCRIPT = files(__package__).joinpath("status.js").read_text(encoding="utf-8")
SCRIPT_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
"""The only script that a page may run, for its Content-Security-Policy."""
_REFRESH_SECONDS = 15
_TURN_SECONDS = 0.005
_MOST_BYTES = 16 << 20  # of the page, but for what each card has in any case
_LEAST_CARD_BYTES, _MOST_CARD_BYTES = 16 << 10, 256 << 10  # an honest one has some 10 KiB

_HEAD = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>InferCanary</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">
<style>{STYLE}</style></head><body>
"""
_LINKS = (
    '<a href="metrics">metrics</a><a href="runbooks">runbooks</a>'
    '<a href="-/healthy">healthy</a><a href="-/ready">ready</a>'
)
_ALERTS = '<a href="{}" rel="noopener noreferrer">alerts</a>'
_TROUBLE = '<p class="note">{}</p>'
_GONE = '<p class="note"><span class="trouble">{} ({}) does not run: {}.</span></p>'
_LEFT = '<p class="note">{}: its last container, {}, ended {} ago. What is stopped sends no alert.</p>'
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
    version: str,
    troubles: Iterable[str] = (),
    ended: Mapping[Key, Ended] | None = None,
    left: Iterable[Gone] = (),
    alertmanager: str = "",
    policy: Policy = LIVE,
) -> bytes:
    """The whole page; it yields to the event loop between cards. What is wrong with one card costs no other.

    Args:
        probes: What the exporter polls.
        version: The exporter's.
        troubles: Sentences about what is wrong with the exporter itself.
        ended: Of each container that the kernel ended for memory, also of one that is gone.
        left: Services without a container.
        alertmanager: Its web address; empty for none.
        policy: How many runs a baseline has.

    Returns:
        HTML in UTF-8.
    """
    now = time.monotonic()
    ended = ended or {}
    turn = _Turn()
    states: dict[Key, State] = dict.fromkeys((probe.key for probe in probes), "not shown")
    for probe in probes:
        with _costs_one(probe):
            states[probe.key] = state_of(probe, ended.get(probe.key))
        await turn.over()
    places = [*STATES]
    ordered = sorted(probes, key=lambda probe: (places.index(states[probe.key]), probe.key))
    parts = [_HEAD, _top(states.values(), alertmanager)]
    parts += [_TROUBLE.format(escaped(sentence, 400)) for sentence in troubles]
    here = {probe.key for probe in ordered}
    parts += [
        _GONE.format(escaped(name), escaped(str(ServiceKey(namespace, service))), how_it_ended(how))
        for (namespace, service, name), how in sorted(ended.items())
        if (namespace, service, name) not in here
    ]
    parts += [
        _LEFT.format(escaped(str(each.service)), escaped(each.container), duration(each.seconds))
        for each in left
    ]
    most = max(_LEAST_CARD_BYTES, min(_MOST_CARD_BYTES, _MOST_BYTES // max(1, len(ordered))))
    cards: list[bytes] = []
    for probe in ordered:
        text = _BROKEN.format(escaped(probe.container.replica))
        if states[probe.key] != "not shown":
            with _costs_one(probe):
                text = card(probe, now, states[probe.key], ended.get(probe.key), policy, most)
        cards.append(text.encode())  # as text, one odd character would make it four times as long in memory
        await turn.over()
    footer = f"<footer><small>InferCanary {escaped(version)} · refreshes every {_REFRESH_SECONDS} s</small></footer>"
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


def _top(states: Iterable[State], alertmanager: str) -> str:
    counts = Counter(states)
    tally = " · ".join(
        f'<span class="{style}"><b>{counts[state]}</b> {state}</span>'
        for state, style in STATES.items()
        if counts[state]
    )
    alerts = _ALERTS.format(escaped(alertmanager, 2_000)) if alertmanager else ""
    return (
        f'<header class="top"><h1>InferCanary</h1><p class="tally soft">{tally}</p>'
        f"<nav>{alerts}{_LINKS}</nav></header>"
    )
