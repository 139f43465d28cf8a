"""Which starts are of the same work: by image, model and the canary's settings, where not all of that is known."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

import msgspec

from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import MODEL, SETTINGS, of_canary
from infercanary.judge.images import of_one_image
from infercanary.judge.model import Start

SAME_DRAWING = 1e-3
"""Relative error of the output up to which weights of one layout count as drawn from one seed: last bits make 1e-6 in
float32 and 1e-4 in bfloat16, other weights 1."""
_WEIGHTS = "weights-"
_FEWEST_REDRAWN = 4
_DRAWINGS = 16  # that a start is compared with: more kinds of CPU have no service


class SettingsChange(msgspec.Struct, frozen=True):
    """A canary's settings were edited: what came before is not compared."""

    at: float
    """Unix seconds."""
    with_upgrade: bool
    """Whether image or model became another one at the same start: what that did is not known."""


def identified(starts: Sequence[Start]) -> Sequence[Start]:
    """The starts with what a start does not report of itself taken from those beside it.

    An older probe reports no digests, and a server's list may fail: what is not known is no change. The last start of
    the container before it that knows counts first; then the next one, then another container's. So a start keeps what
    it was taken for when others follow. A model is taken from starts of the same image only; settings are not the
    image's, and so from all.

    Args:
        starts: Of one service, with the runs of one canary, in order of time.

    Returns:
        The same list where all are known alike.
    """
    starts = of_one_image(starts)
    for component in (MODEL, SETTINGS):
        starts = _filled(starts, component)
    return _of_one_drawing(starts)


def comparable(
    starts: Sequence[Start], live: Sequence[Start]
) -> tuple[Sequence[Start], SettingsChange | None]:
    """The starts whose settings are those of today, each container's own; and since when, where others are left out.

    Args:
        starts: Of one service and canary, in order of time, identified.
        live: The newest start of each container that still runs.

    Returns:
        The same list where no settings changed.
    """
    of_container = {s.generation.container: s.settings for s in live if s.settings}
    today = {*of_container.values()}
    kept = [
        start
        for start in starts
        if not start.settings
        or not today
        or (
            start.settings in today
            and start.settings == of_container.get(start.generation.container, start.settings)
        )
    ]
    if len(kept) == len(starts):
        return starts, None
    boots = {start.boot for start in kept}
    return kept, _edited(starts, [i for i, start in enumerate(starts) if start.boot not in boots])


def redrawn(starts: Sequence[Start]) -> int:
    """How many starts there are, each with weights of its own, as if they were drawn without a seed; else 0.

    Args:
        starts: Of one service and canary, identified.
    """
    models = [start.model for start in starts if start.model.startswith(_WEIGHTS)]
    return len(models) if len({*models}) == len(models) >= _FEWEST_REDRAWN else 0


def _edited(starts: Sequence[Start], out: Sequence[int]) -> SettingsChange | None:
    """When settings were edited: at the first start that a container left out has with those of today.

    Where all those left out are gone, it is the start of a container that came after them; None where none came.
    """
    last = {starts[i].generation.container: i for i in out}
    begun = {start.generation.container: i for i, start in reversed([*enumerate(starts)])}
    own = [
        i for i, s in enumerate(starts) if s.generation.container in last and i > last[s.generation.container]
    ]
    new = [i for i in begun.values() if i > out[-1]]
    if not (since := own or new):
        return None
    start = starts[min(since)]
    container = start.generation.container
    left_out = {*out}
    if any(
        s.generation.container == container and i not in left_out for i, s in enumerate(starts[: out[-1]])
    ):
        return None  # they were put back: its runs before they were edited are comparable
    before = starts[last.get(start.generation.container, out[-1])]
    return SettingsChange(start.generation.started_at, start.identity != before.identity)


def _of_one_drawing(starts: Sequence[Start]) -> Sequence[Start]:
    """The starts with one digest for weights that are the same but for their last bits.

    A factory that draws its weights from a seed draws other last bits on another CPU, or with other instructions. Such
    weights have the same layout, and give the same answer to the canary's input.
    """
    found: list[Start] = []
    first: dict[str, Start] = {}  # of each digest
    drawn: dict[str, list[Start]] = {}  # the same by layout
    for start in starts:
        of, _, layout = start.model.rpartition(".")
        if of.startswith(_WEIGHTS):
            known = drawn.setdefault(layout, [])
            same = first.get(start.model) or next(
                (each for each in known[-_DRAWINGS:] if _agree(each, start)), None
            )
            if same is None:
                known.append(start)
                first[start.model] = start
            elif same.model != start.model:
                start = _with(start, MODEL, same.model)
        found.append(start)
    return found


def _agree(one: Start, other: Start) -> bool:
    """Whether both gave the same answer to the same input; not where one of them is not known.

    Classes, numbers of tokens and zeros are answers that other weights give, too.
    """
    outputs = [start.generation.outputs.get(start.canary_name, ()) for start in (one, other)]
    if any(all(map(float.is_integer, values)) for values in outputs):
        return False
    return one.settings == other.settings and relative_error(*outputs) <= SAME_DRAWING


def _filled(starts: Sequence[Start], component: str) -> Sequence[Start]:
    values = [_value(start, component) for start in starts]
    if all(values) or not any(values):
        return starts
    images = ["" if component == SETTINGS else start.generation.image_key for start in starts]
    # Where it is known: by image, and by image and container.
    places: dict[tuple[str, ...], list[int]] = {}
    for place, (start, value) in enumerate(zip(starts, values, strict=True)):
        if value:
            for beside in ((images[place], start.generation.container), (images[place],)):
                places.setdefault(beside, []).append(place)

    def nearest(place: int) -> str:
        """What the start beside it says that knows; empty where none does."""
        image = images[place]
        known = places.get((image, starts[place].generation.container)) or places.get((image,), [])
        before = bisect(known, place)
        return values[known[max(0, before - 1)]] if known else ""

    return [
        start if value else _with(start, component, nearest(place))
        for place, (start, value) in enumerate(zip(starts, values, strict=True))
    ]


def _value(start: Start, component: str) -> str:
    return start.model if component == MODEL else start.settings


def _with(start: Start, component: str, value: str) -> Start:
    if not value or not start.canary_name:
        return start
    environment = {**start.generation.environment, of_canary(component, start.canary_name): value}
    generation = msgspec.structs.replace(start.generation, environment=environment)
    return Start(generation, start.samples, start.last_at, start.canary_name)
