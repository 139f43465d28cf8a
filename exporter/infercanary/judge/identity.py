"""Identity: decides which starts ran the same work (image, model, the canary's settings), even with missing values.

A Kubernetes node that pulled an image reports a digest of the registry (of an index or a manifest). A node into which
the image was loaded reports the digest of the image's config. No API maps one digest to the other. So images are
compared by digest if both digests have the same form, and otherwise by reference with tag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import msgspec

from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import MODEL, SETTINGS, of_canary
from infercanary.judge.model import ENVIRONMENT, Generation, Start

_WEIGHTS = "weights-"


class Digests(msgspec.Struct, frozen=True):
    """Digests of one image; a field is empty if it is unknown.

    A built image has only a config digest until it is pushed, and a node of Kubernetes reports only one of the three.
    So two images are the same if they share any digest.
    """

    config_digest: str = ""
    manifest_digest: str = ""
    """Registry's digest of the image for one platform, or a registry's digest of unknown kind."""
    index_digest: str = ""
    """Registry's digest of the list of images for several platforms."""

    @property
    def any(self) -> str:
        """First known digest; empty if all are unknown."""
        return self.config_digest or self.manifest_digest or self.index_digest


def identified(starts: Sequence[Start]) -> Sequence[Start]:
    """Fill in unknown models and settings of a start from neighbouring starts.

    An older probe reports no digests, and a request to a server may fail. So a missing value is no change. The value is
    copied from the nearest earlier start with a known value, otherwise from the nearest later start. So later starts do
    not change a start's identity. A model is copied only between starts of the same image, settings between any starts.

    Args:
        starts: Starts of one service with the runs of one canary, in order of time.
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
    """Leave out the starts whose canary settings differ from those of the live starts.

    Args:
        starts: Identified starts of one service and canary, in order of time.
        live: Newest start of each container that still runs.

    Returns:
        The comparable starts, and the time of the last change of settings (Unix seconds); None if there was none.
    """
    own = {start.generation.container: start.settings for start in live}
    left = [
        start
        for start in starts
        if start.settings == own.get(start.generation.container, start.settings) in own.values()
    ]
    return left, None if left[:1] == [*starts[:1]] else left[0].generation.started_at


def redrawn(starts: Sequence[Start]) -> int:
    """Return the number of starts if all have different weights, as with random initialization.

    Returns:
        0 if two starts have the same weights, or if there are too few starts.
    """
    fewest = 4  # fewer starts with different weights may be real upgrades
    models = [start.model for start in starts if start.model.startswith(_WEIGHTS)]
    return len(models) if len({*models}) == len(models) >= fewest else 0


def reference_of(image: str) -> str:
    """Return the reference of an image without Docker's default registry, but always with a tag."""
    image = image.removeprefix("docker.io/").removeprefix("library/")
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def image_name(generation: Generation) -> str:
    """Return the displayed name of an image: its reference and the first 12 digits of its id.

    The digits distinguish two images with the same tag.
    """
    digest = generation.image_key.rpartition(":")[2][:12]
    name = generation.image if generation.is_known else ENVIRONMENT
    return digest if not name or name.startswith("sha256:") else f"{name} ({digest})"


def _of_one_image(starts: Sequence[Start]) -> list[Start]:
    """Give all starts of one image the same image id, even if their digests have different forms.

    ``image_form`` is kept. Starts reported by Docker are not changed, because they have both id and digest.
    """
    images: dict[str, str] = {}  # first digest of an image, by any of its digests
    named: dict[str, dict[str, str]] = {}  # first digest of an image, by reference and form
    found = []
    for start in starts:
        form, digest = start.generation.image_form, start.generation.image_key
        if form:
            forms = named.setdefault(reference_of(start.generation.image), {})
            if digest not in images:
                if form in forms:  # the tag moved to another image
                    forms.clear()
                images[digest] = next(iter(forms.values()), digest)
            image = forms[form] = images[digest]
            if image != digest:
                start = start.reporting(image_id=image, image_digest="")
        found.append(start)
    return found


def _of_one_drawing(starts: Sequence[Start]) -> Sequence[Start]:
    """Give starts the same model digest if their weights differ only in the last bits.

    Weights initialized from a seed differ in their last bits between kinds of CPU. Such weights have the same layout
    and give nearly the same output for the canary's input: the relative error is about 1e-6 in float32 and 1e-4 in
    bfloat16. With different weights the relative error is about 1. Outputs of whole numbers, such as classes, token
    counts and zeros, prove nothing, because other weights may give the same numbers.
    """
    most = 16  # limits CPU time if each start has new random weights; services use fewer kinds of CPU
    found: list[Start] = []
    drawings: dict[tuple[str, str], list[Start]] = defaultdict(
        list
    )  # first start with each set of weights, by layout and settings
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
    """Return True if both outputs agree within 0.1 % and are not all whole numbers."""
    outputs = [start.generation.outputs.get(start.canary_name, ()) for start in (a, b)]
    return relative_error(*outputs) <= 1e-3 and not all(map(float.is_integer, outputs[1]))


def _with(start: Start, component: str, value: str) -> Start:
    name = of_canary(component, start.canary_name)
    return start.reporting(environment={**start.generation.environment, name: value})
