"""What verdicts rest on: each run once, thinned with age, in one SQLite file."""
