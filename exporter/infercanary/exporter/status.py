"""Status page at ``/``: every container, the worst first. Templates escape all text from probes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Collection, Mapping
from importlib.resources import files
from itertools import chain

import structlog

from infercanary.exporter.card import MOST_CANARIES, STATES, Ended, card, state_of
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.probe_state import PolledProbe
from infercanary.pages.html import environment

log = structlog.get_logger(__name__)

_SCRIPT = files(__package__).joinpath("status.js").read_text(encoding="utf-8")
SCRIPT_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
"""Hash of the only script that a page may run, for the Content-Security-Policy."""
_PAGE, _SMALL_CARD = 16 << 20, 24 << 10  # bytes; a usual card has about 10,000
_CARDS = b"<!-- cards -->"  # cannot occur in escaped text


async def page(probes: Collection[PolledProbe], ended: Mapping[Key, Ended], **above: object) -> bytes:
    """Render the whole page. Other tasks run between cards.

    Args:
        probes: Followed containers.
        ended: Memory kills by container, including containers that no longer exist.
        above: Values for the template: ``version``, ``troubles`` of the exporter itself, and ended services
            (``left``).

    Returns:
        HTML in UTF-8.
    """
    room = max(_SMALL_CARD, _PAGE // max(1, len(probes)))
    cards: dict[str, list[bytes]] = {state: [] for state in STATES}
    for probe in sorted(probes, key=lambda probe: probe.key):
        state, html = _render_card(probe, ended.get(probe.key), room)
        cards[state].append(html)
        await asyncio.sleep(0)
    text = (
        environment()
        .get_template("status.html")
        .render(
            above,
            tally=[(STATES[state], len(shown), state) for state, shown in cards.items() if shown],
            ended=ended,
            here={probe.key for probe in probes},
            cards=_CARDS.decode() if probes else "",
            now=time.time(),
            script=_SCRIPT,
        )
    )
    # Joined as bytes: one emoji would make a str four times as large.
    return text.encode().replace(_CARDS, b"".join(chain.from_iterable(cards.values())))


def _render_card(probe: PolledProbe, kill: Ended | None, room: int) -> tuple[str, bytes]:
    """Return state and HTML of one card. An error does not affect other cards."""
    render = environment().get_template("card.html").render
    try:
        state = state_of(probe, kill)
        for most in (MOST_CANARIES, 1):
            html = render(card(probe, most), style=STATES[state], kill=kill).encode()
            if len(html) <= room:
                break
    except Exception:
        log.exception("a container is not shown because of a bug in the exporter", **probe.identity)
        state = "not shown"
        html = render(style=STATES[state], container=probe.container, probe=None).encode()
    return state, html
