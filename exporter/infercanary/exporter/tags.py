"""Moving image tags: tags without a version or a digest. A restart with such a tag may be an accidental upgrade."""

from __future__ import annotations

import re

MOVING_TAG = r"([^@]+/)?[^/:@]+(:(latest|stable|edge|nightly|main|master|head))?"
IMAGE_ID = "[0-9a-f]{12,64}"
"""Pattern of an image id. An image id also looks like a moving tag. A dashboard queries Prometheus with both patterns.
"""


def tag_moves(image: str) -> bool:
    """True if a reference may point to another image tomorrow; False for a version, a digest or an id.

    Args:
        image: Reference that the container was started from.
    """
    return bool(re.fullmatch(MOVING_TAG, image)) and not re.fullmatch(IMAGE_ID, image)
