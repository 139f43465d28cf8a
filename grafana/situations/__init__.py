"""Test situations for the dashboards, and a real Prometheus with their data.

:mod:`.worlds` describes the situations. :mod:`.reports` makes the reports of their probes, with
:mod:`.moments` (state of a server at a time) and :mod:`.values` (value of each metric). :mod:`.history` sends
the reports to the real exporter and its judge. :mod:`.backfill` loads the exporter's output, and the results
of the recording rules, into a real Prometheus.
"""
