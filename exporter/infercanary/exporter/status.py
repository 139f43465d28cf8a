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

from infercanary.exporter.card import MOST_CANARIES, STATES, Ended, card, state_of
from infercanary.exporter.collect import EndedService
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.polled import PolledProbe
from infercanary.judge.policy import LIVE, Policy
from infercanary.pages.html import environment

log = structlog.get_logger(__name__)

_SCRIPT = files(__package__).joinpath("status.js").read_text(encoding="utf-8")
SCRIPT_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
"""The only script that a page may run, for its Content-Security-Policy."""
_TURN_SECONDS = 0.005
_PAGE, _SMALL_CARD = 16 << 20, 24 << 10  # characters; a usual card has some 10,000
_CARDS = "<!-- cards -->"  # no text of other people, which is escaped
for _name in environment().list_templates(["html"]):
    environment().get_template(_name)  # compiled at the start: it would make the first page late by 70 ms


async def page(
    probes: Collection[PolledProbe],
    *,
    version: str,
    troubles: Iterable[str] = (),
    ended: Mapping[Key, Ended] | None = None,
    left: Iterable[EndedService] = (),
    alertmanager: str = "",
    policy: Policy = LIVE,
) -> bytes:
    """Render the whole page, and yield to the event loop between cards. A fault with one card costs no other.

    Args:
        probes: Followed containers.
        version: Version of the exporter.
        troubles: Troubles of the exporter itself, as sentences.
        ended: Memory kills by container, also of those that are gone.
        left: Services without a container.
        alertmanager: Its web address; empty for none.
        policy: Number of runs in a baseline.

    Returns:
        HTML in UTF-8.
    """
    ended, order = ended or {}, [*STATES]
    template = environment().get_template("card.html")
    room = max(_SMALL_CARD, _PAGE // max(1, len(probes)))
    cards = []
    turn_end = time.monotonic() + _TURN_SECONDS
    for probe in probes:
        kill = ended.get(probe.key)
        try:
            state = state_of(probe, kill)
            html = template.render(card(probe, policy), style=STATES[state], kill=kill)
            if len(html) > room:
                most = max(1, MOST_CANARIES * room // len(html))
                html = template.render(card(probe, policy, most), style=STATES[state], kill=kill)
        except Exception:
            state = "not shown"
            html = template.render(style=STATES[state], container=probe.container, probe=None)
            log.exception("a container is not shown by a fault of the exporter", **probe.identity)
        cards.append((order.index(state), probe.key, html.encode()))
        if time.monotonic() >= turn_end:
            await asyncio.sleep(0)
            turn_end = time.monotonic() + _TURN_SECONDS
    cards.sort()
    tally = Counter(order[place] for place, *_ in cards)
    here = {probe.key for probe in probes}
    text = environment().get_template("status.html").render(
        tally=[(STATES[state], count, state) for state, count in tally.items()],
        troubles=troubles,
        gone=sorted((key, kill) for key, kill in ended.items() if key not in here),
        left=left,
        alertmanager=alertmanager,
        cards=_CARDS if cards else "",
        version=version,
        now=time.time(),
        script=_SCRIPT,
    )  # fmt: skip
    begin, _, end = text.partition(_CARDS)
    # As bytes: in a text, one odd character would make all of it four times as long in memory.
    return b"".join([begin.encode(), *(html for *_, html in cards), end.encode()])
