"""Folders of the repository, and a function that runs a program to its end."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden"


def ended(*command, code=0, seconds=120, **options):
    """Run a program, and return the ended process with its output as text.

    Args:
        command: Program and arguments.
        code: Expected exit code; None for any.
        seconds: Time limit.
        options: Options of ``subprocess.run``; ``env`` adds variables to those of this process.
    """
    options["env"] = {**os.environ, **options.get("env", {})}
    done = subprocess.run(
        [*map(str, command)], **{"capture_output": True, "text": True, "timeout": seconds} | options
    )
    assert code in (None, done.returncode), f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
