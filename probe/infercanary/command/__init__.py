"""Command line, exit codes, and settings files: reading and checking. All other packages may import this package."""
