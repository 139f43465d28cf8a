"""The commands: arguments in, an exit code out."""
