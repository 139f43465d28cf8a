"""``python -m infercanary`` is the command ``infercanary``."""

from infercanary.command.cli import main

main()
