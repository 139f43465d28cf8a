"""The commands: each takes arguments and returns an exit code."""
