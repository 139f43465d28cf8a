"""Definitions shared by probe and exporter: the report, the journal, and their common vocabulary."""
