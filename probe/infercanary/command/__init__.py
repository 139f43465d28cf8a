"""The command line, settings files and their check, which every part may use."""
