"""Status page at ``/``: every container, the worst first. Templates escape all that probes report."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from importlib.resources import files

import structlog

from infercanary.exporter.card import STATES, Ended, card, state_of
from infercanary.exporter.departed import Gone
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.polled import PolledProbe
from infercanary.judge.policy import LIVE, Policy
from infercanary.pages.html import environment

log = structlog.get_logger(__name__)

_SCRIPT = files(__package__).joinpath("status.js").read_text(encoding="utf-8")
SCRIPT_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
"""The only script that a page may run, for its Content-Security-Policy."""
_PAGE, _SMALL_CARD = 16 << 20, 24 << 10  # bytes; a usual card has some 10,000
_CARDS = b"<!-- cards -->"  # no text of other people, which is escaped
for _name in environment().list_templates(["html"]):
    environment().get_template(_name)  # compiled at the start: it would make the first page late by 70 ms


async def page(
    probes: Collection[PolledProbe],
    *,
    version: str,
    troubles: Iterable[str] = (),
    ended: Mapping[Key, Ended] | None = None,
    left: Iterable[Gone] = (),
    policy: Policy = LIVE,
) -> bytes:
    """Render the whole page, and yield to the event loop between cards.

    Args:
        probes: Followed containers.
        version: Version of the exporter.
        troubles: Troubles of the exporter itself, as sentences.
        ended: Memory kills by container, also of those that are gone.
        left: Services without a container.
        policy: Number of runs in a baseline.

    Returns:
        HTML in UTF-8.
    """
    ended, order = ended or {}, [*STATES]
    room = max(_SMALL_CARD, _PAGE // max(1, len(probes)))
    cards = []
    for probe in probes:
        state, html = _render_card(probe, ended.get(probe.key), policy, room)
        cards.append((order.index(state), probe.key, html))
        await asyncio.sleep(0)
    cards.sort()
    tally = Counter(order[place] for place, *_ in cards)
    here = {probe.key for probe in probes}
    text = environment().get_template("status.html").render(
        tally=[(STATES[state], count, state) for state, count in tally.items()],
        troubles=troubles,
        gone=sorted((key, kill) for key, kill in ended.items() if key not in here),
        left=left,
        cards=_CARDS.decode() if cards else "",
        version=version,
        now=time.time(),
        script=_SCRIPT,
    )  # fmt: skip
    # As bytes: in a text, one odd character would make all of it four times as long in memory.
    return text.encode().replace(_CARDS, b"".join(html for *_, html in cards))


def _render_card(probe: PolledProbe, kill: Ended | None, policy: Policy, room: int) -> tuple[str, bytes]:
    """Return state and HTML; a fault with one card costs no other."""
    render = environment().get_template("card.html").render
    try:
        state = state_of(probe, kill)
        html = render(card(probe, policy), style=STATES[state], kill=kill).encode()
        if len(html) > room:
            html = render(card(probe, policy, 1), style=STATES[state], kill=kill).encode()
    except Exception:
        log.exception("a container is not shown by a fault of the exporter", **probe.identity)
        state = "not shown"
        html = render(style=STATES[state], container=probe.container, probe=None).encode()
    return state, html
