"""Which starts in Kubernetes ran one image, though its nodes name it by digests of different content.

A node that pulled an image names it by the digest of what the registry serves (of an index, or of a manifest); one
into which it was loaded, by the digest of its config. No API maps one to the other. So digests of one form are
compared; those of different forms are of one image where the reference is the same, tag included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from infercanary.judge.model import Generation, ImageForm, Start

_DIGEST = re.compile(r"(?:^|.*@)(sha256:[0-9a-f]{64})")


class _Image(msgspec.Struct):
    """One image, by all that it was called."""

    image_id: str
    image_digest: str
    digests: dict[ImageForm, str]
    references: set[str]


def of_one_image(starts: Sequence[Start]) -> Sequence[Start]:
    """The starts with one id and digest for each image; the form stays what the node said.

    Args:
        starts: Of one service, in order of time.

    Returns:
        As many, in the same order; Docker's have both digests, and stay as they are.
    """
    images: list[_Image] = []
    found = []
    for start in starts:
        generation = start.generation
        form, digest, reference = generation.image_form, generation.image_key, reference_of(generation.image)
        if not form:
            found.append(start)
            continue
        image = next((each for each in reversed(images) if digest in each.digests.values()), None)
        image = image or next(
            (each for each in reversed(images) if reference in each.references and form not in each.digests),
            None,
        )
        if image is None:
            image = _Image(generation.image_id, generation.image_digest, {}, set())
            images.append(image)
        image.digests.setdefault(form, digest)
        image.references.add(reference)
        if (generation.image_id, generation.image_digest) != (image.image_id, image.image_digest):
            generation = msgspec.structs.replace(
                generation, image_id=image.image_id, image_digest=image.image_digest
            )
            start = Start(generation, start.samples, start.last_at, start.canary)
        found.append(start)
    return found


def by_reference(before: Iterable[Start], after: Iterable[Start]) -> bool:
    """Whether two images differ by reference alone: no digest of one is of the form of one of the other's.

    Args:
        before: Starts of the old image.
        after: Starts of the new one.
    """
    old, new = ({start.generation.image_form for start in starts} for starts in (before, after))
    return bool(old and new) and "" not in old | new and old.isdisjoint(new)


def is_named(generation: Generation, image: str) -> bool:
    """Whether a start ran the image that somebody names.

    Args:
        generation: The start.
        image: A reference, or a digest or an id (``sha256:…``). Where it has a digest, that decides, and no tag does.
    """
    if digest := _DIGEST.fullmatch(image):
        known = (generation.image_id, generation.image_digest, generation.image)
        return digest[1] in (each.rpartition("@")[2] for each in known)
    reference, pinned, _ = generation.image.partition("@")
    if not reference or (pinned and ":" not in reference.rpartition("/")[2]):
        return False  # it was started by its digest alone
    return reference_of(image) == reference_of(reference)


def reference_of(image: str) -> str:
    """The whole reference: a short one leaves out Docker's registry, and the tag ``latest``.

    Args:
        image: As a pod names it.
    """
    name, at, digest = image.partition("@")
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not {".", ":"} & {*first} and first != "localhost":
        name = f"docker.io/{name}"
    if not at and ":" not in name.rpartition("/")[2]:
        name = f"{name}:latest"
    return f"{name}{at}{digest}"
