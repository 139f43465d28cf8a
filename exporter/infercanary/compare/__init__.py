"""Commands that work on files without an exporter: ``infercanary compare``, ``scan`` and ``report``."""
