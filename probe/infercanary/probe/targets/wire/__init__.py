"""Shared code of targets that ask a server over HTTP: timed connection, server options, and data formats."""
