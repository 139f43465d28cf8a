"""Image tags that move: without a version or a digest, so that a restart may be an upgrade that nobody ordered."""

from __future__ import annotations

import re

MOVING_TAG = r"([^@]+/)?[^/:@]+(:(latest|stable|edge|nightly|main|master|head))?"
IMAGE_ID = "[0-9a-f]{12,64}"
"""What looks like one, and is none. A board asks Prometheus by both."""


def tag_moves(image: str) -> bool:
    """Whether a reference may be another image tomorrow.

    Args:
        image: As the container was started from.

    Returns:
        False for what has a version or a digest, and for an id.
    """
    return bool(re.fullmatch(MOVING_TAG, image)) and not re.fullmatch(IMAGE_ID, image)
