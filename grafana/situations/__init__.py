"""Situations that a board has to show well: what is in them, and a real Prometheus that has them.

:mod:`.worlds` says what happens, :mod:`.reports` what a probe reports meanwhile (:mod:`.moments` how its server is,
:mod:`.values` the value of each metric), :mod:`.history` has the real exporter and its judge read that, and
:mod:`.backfill` puts what the exporter shows, and what the recording rules make of it, into a real Prometheus.
"""
