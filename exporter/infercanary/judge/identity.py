"""Which starts ran the same work: image, model, and the canary's settings, where not all of that is known.

In Kubernetes, a node that pulled an image names it by the digest of what the registry serves (of an index, or of a
manifest); a node into which it was loaded, by the digest of its config. No API maps one to the other. So digests of one
form are compared; images of different forms are the same where their reference is, tag included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product

from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import MODEL, SETTINGS, of_canary
from infercanary.judge.model import ENVIRONMENT, Generation, Start

_WEIGHTS = "weights-"


def identified(starts: Sequence[Start]) -> Sequence[Start]:
    """Fill in what a start does not report of itself from the starts near it.

    An older probe reports no digests, and a server's list may fail: a missing value is no change. The last start before
    it counts first, then the next one. So a start keeps what it was taken for when others follow. A model is taken from
    starts of the same image only; settings are not the image's.

    Args:
        starts: Of one service, with the runs of one canary, in order of time.

    Returns:
        As many, in the same order.
    """
    found = _of_one_image(starts)
    for component, order in product((MODEL, SETTINGS), (1, -1)):
        near: dict[str, str] = {}
        for place in range(len(found))[::order]:
            start = found[place]
            image, known = ("", start.settings)
            if component == MODEL:
                image, known = start.generation.image_key, start.model
            near[image] = known or near.get(image, "")
            if near[image] != known:
                found[place] = _with(start, component, near[image])
    return _of_one_drawing(found)


def comparable(starts: Sequence[Start], live: Sequence[Start]) -> tuple[Sequence[Start], float | None]:
    """Leave out the starts with other settings of the canary than today's.

    Args:
        starts: Of one service and canary, in order of time, identified.
        live: The newest start of each container that still runs: each has settings of its own.

    Returns:
        The others, and when the settings were edited (Unix seconds): None where runs from before that are comparable.
    """
    own = {start.generation.container: start.settings for start in live}
    left = [
        start
        for start in starts
        if start.settings == own.get(start.generation.container, start.settings) in own.values()
    ]
    return left, None if left[:1] == [*starts[:1]] else left[0].generation.started_at


def redrawn(starts: Sequence[Start]) -> int:
    """How many starts there are, each with random weights of its own; 0 if two have the same or there are too few.

    Args:
        starts: Of one service and canary, identified.
    """
    fewest = 4  # three images with other weights each are a week's work
    models = [start.model for start in starts if start.model.startswith(_WEIGHTS)]
    return len(models) if len({*models}) == len(models) >= fewest else 0


def reference_of(image: str) -> str:
    """The short reference, without Docker's registry, but with its tag.

    Args:
        image: As a pod names it.
    """
    image = image.removeprefix("docker.io/").removeprefix("library/")
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def image_name(generation: Generation) -> str:
    """What people call the image: its reference, and enough of the id to distinguish two of one tag.

    Args:
        generation: A start of it.
    """
    digest = generation.image_key.rpartition(":")[2][:12]
    name = generation.image if generation.is_known else ENVIRONMENT
    return digest if not name or name.startswith("sha256:") else f"{name} ({digest})"


def _of_one_image(starts: Sequence[Start]) -> list[Start]:
    """The starts with one id for each image; the form stays what the node said.

    Docker's starts have both digests and no form, and stay as they are.
    """
    images: dict[str, str] = {}  # the first digest of an image, by each digest
    named: dict[str, dict[str, str]] = {}  # the same by form, for each reference
    found = []
    for start in starts:
        form, digest = start.generation.image_form, start.generation.image_key
        if form:
            forms = named.setdefault(reference_of(start.generation.image), {})
            if digest not in images:
                if form in forms:  # the tag moved on
                    forms.clear()
                images[digest] = next(iter(forms.values()), digest)
            image = forms[form] = images[digest]
            if image != digest:
                start = start.reporting(image_id=image, image_digest="")
        found.append(start)
    return found


def _of_one_drawing(starts: Sequence[Start]) -> Sequence[Start]:
    """The starts with one digest for weights that are the same but for their last bits.

    A factory that draws its weights from a seed draws other last bits on another CPU, or with other instructions. Such
    weights have the same layout, and give the same answer to the canary's input: last bits make relative errors of
    1e-6 in float32 and 1e-4 in bfloat16, other weights 1. Classes, numbers of tokens and zeros are answers that other
    weights give, too.
    """
    most = 16  # no service runs on more kinds of CPU; without a seed, weights are new at each of thousands of starts
    found: list[Start] = []
    drawings: dict[tuple[str, str], list[Start]] = defaultdict(
        list
    )  # the first start of each, by layout and settings
    for start in starts:
        first = start
        if start.model.startswith(_WEIGHTS):
            known = drawings[start.model.rpartition(".")[2], start.settings]
            first = next((one for one in known if one.model == start.model or _is_alike(one, start)), start)
            if first is start and len(known) < most:
                known.append(start)
        found.append(start if first.model == start.model else _with(start, MODEL, first.model))
    return found


def _is_alike(a: Start, b: Start) -> bool:
    """Whether both give the same answer to the canary's input, and one that other weights would not give."""
    outputs = [start.generation.outputs.get(start.canary_name, ()) for start in (a, b)]
    return relative_error(*outputs) <= 1e-3 and not all(map(float.is_integer, outputs[1]))


def _with(start: Start, component: str, value: str) -> Start:
    name = of_canary(component, start.canary_name)
    return start.reporting(environment={**start.generation.environment, name: value})
