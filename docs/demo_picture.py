"""``make demo-picture``: writes docs/img/demo.svg, the terminal at the end of a real ``infercanary demo``."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from infercanary.command.interruption import Interruption
from infercanary.demo.__main__ import Demo
from infercanary.demo.processes import Processes

FILE = Path(__file__).parent / "img" / "demo.svg"
WIDTH = 92


def main() -> int:
    """Run the demo and draw its last screen; return the demo's exit code."""
    interruption = Interruption()
    with interruption.handled(), Processes() as processes:
        demo = Demo(processes, interruption)
        code = demo.run()
    if code == 0:
        console = Console(record=True, width=WIDTH, file=io.StringIO())
        console.print("$ make demo", demo.screen(), highlight=False)
        picture = console.export_svg(title="make demo", unique_id="demo")
        FILE.write_text(
            re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)
        )  # no fonts from the internet
    return code


if __name__ == "__main__":
    sys.exit(main())
