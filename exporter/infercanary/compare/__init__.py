"""Answers from files, without an exporter: ``infercanary compare``, ``scan`` and ``report``."""
