"""The covariates of this host: what canaries of other services did at the same time."""

from __future__ import annotations

import math
import time

from infercanary.judge.causes import joined
from infercanary.judge.identity import identified
from infercanary.judge.model import ServiceKey, Start
from infercanary.store.base import Store

_MOST = 8
_READ_SECONDS = 30.0  # they are read from the store so often at most


class Siblings:
    """A canary in one container of each other service, of those found on this host: one start for each image.

    Restarts of one image are joined, so that a sibling that was restarted still has runs on either side of an upgrade.
    """

    def __init__(self) -> None:
        self._each: list[list[Start]] = []
        self._read_at = -math.inf

    def of(self, service: ServiceKey, store: Store) -> list[Start]:
        """The starts of the siblings of ``service``.

        Args:
            service: The one that is judged.
            store: Where the starts are read; not at each call.

        Returns:
            Starts with their runs that count; those of one sibling follow each other.
        """
        now = time.monotonic()
        if now - self._read_at > _READ_SECONDS:
            self._read_at, self._each = now, []
            for other, canary in store.most_active(_MOST + 1):
                starts = [Start.of(g, found) for g, found in store.generations(other, canary) if g.is_known]
                counted = [start for start in starts if start.samples]
                if counted:
                    last = max(counted, key=lambda start: start.samples[-1].started_at).generation.container
                    own = [s for s in counted if s.generation.container == last]
                    self._each.append(joined(identified(own)))
        others = [each for each in self._each if each[0].generation.key != service]
        return [start for each in others[:_MOST] for start in each]
