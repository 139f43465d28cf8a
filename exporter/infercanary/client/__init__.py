"""HTTP client for probe reports: size-limited download, validation, and counts of invalid parts."""
