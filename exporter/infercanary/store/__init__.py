"""Store of runs and verdicts: an SQLite file, or a PostgreSQL database that several exporters share."""
