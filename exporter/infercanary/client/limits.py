"""How much one probe may cost who reads it: a probe is untrusted input."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much one answer of a probe may have, and all probes together.

    ``samples`` are exposition lines: a histogram's point has one per bucket. The last three are of all probes: how many
    there are, and what ``/metrics`` shows of them. Prometheus refuses the whole host beyond the ``body_size_limit`` and
    the ``sample_limit`` of its scrape (100 MB and 500,000 in ours), so these are lower.
    """

    report_bytes: Count = 4 << 20
    families: Count = 200
    samples: Count = 5_000
    labels: Count = 10
    label_bytes: Count = 256
    environment_bytes: Count = 64 << 10
    runs: Count = 10_000
    probes: Count = 2_000
    shown_bytes: Count = 80_000_000
    shown_series: Count = 400_000
