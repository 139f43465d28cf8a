"""Test situations that a dashboard must show well, and a real Prometheus with their data.

:mod:`.worlds` describes the situations. :mod:`.reports` makes the reports of their probes, with help of
:mod:`.moments` (state of a server at a time) and :mod:`.values` (value of each metric). :mod:`.history` gives the
reports to the real exporter and its judge. :mod:`.backfill` loads the exporter's output, and the results of the
recording rules, into a real Prometheus.
"""
