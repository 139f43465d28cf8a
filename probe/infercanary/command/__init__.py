"""Command line, exit codes, and settings files with their check. Every part may use it."""
