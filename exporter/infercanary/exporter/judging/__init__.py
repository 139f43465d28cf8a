"""Storing and judging of runs, in one thread, separate from the event loop."""
