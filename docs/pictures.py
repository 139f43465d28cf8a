"""``make pictures``: docs/img/status.png, the status page of a real exporter after an upgrade, drawn by Chromium."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import structlog

from grafana.situations.history import exporters
from grafana.situations.worlds import END, SITUATIONS
from infercanary.exporter import status
from infercanary.exporter.app import VERSION

TARGET = Path(__file__).parent / "img/status.png"
SITUATION = "upgraded"
WINDOW = (1000, 760)  # pixels: the two containers that were upgraded


async def page() -> str:
    """The status page at the end of the situation.

    Returns:
        HTML.
    """
    [exporter] = await exporters(SITUATIONS[SITUATION], lambda _: None)
    with patch("time.time", lambda: END):
        return await status.page(exporter.collector.probes.values(), silent=(), version=VERSION)


def main() -> None:
    """Draw it; exit with 2 where Chromium is missing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    chromium = shutil.which("chromium")
    if chromium is None:
        print("docs/pictures.py: chromium is not installed: apt-get install chromium", file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "status.html"
        html.write_text(asyncio.run(page()), encoding="utf-8")
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/chromium", f"--window-size={WINDOW[0]},{WINDOW[1]}"]
        command += [f"--screenshot={TARGET}", html.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603


if __name__ == "__main__":
    main()
