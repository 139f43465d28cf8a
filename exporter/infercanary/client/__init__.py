"""A probe's report, asked for over HTTP: bounded, checked, and what is wrong with it counted."""
