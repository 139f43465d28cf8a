"""Command line, exit codes, and settings files with their check. All other packages may import this package."""
