"""How much one probe may cost who reads it: a probe is untrusted input."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much one probe may cost. ``samples`` are exposition lines: a histogram's point has one per bucket."""

    report_bytes: Count = 4 << 20
    families: Count = 200
    samples: Count = 5_000
    labels: Count = 10
    label_bytes: Count = 256
    environment_bytes: Count = 64 << 10
    runs: Count = 10_000
    probes: Count = 2_000
