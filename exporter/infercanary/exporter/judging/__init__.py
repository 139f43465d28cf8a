"""Storing and judging what probes report: one thread beside the event loop."""
