"""The store: each run once, thinned with age, and the verdicts; in an SQLite file, or in PostgreSQL for a fleet."""
