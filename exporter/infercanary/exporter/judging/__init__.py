"""Storing and judging of runs, in one thread beside the event loop."""
