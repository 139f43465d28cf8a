"""The judge without an exporter: files in, an answer out. ``infercanary compare`` and ``infercanary scan``."""
