"""`python -m grafana.pictures`, as a process, against a real Prometheus; and what it says of a mistake."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from PIL import Image

from grafana.pictures.__main__ import main

pytestmark = pytest.mark.takes(50)

ROOT = Path(__file__).parents[3]


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grafana.pictures", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def _end(hour: Any) -> str:
    return datetime.fromtimestamp(hour.end - hour.step, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_each_dashboard_is_a_picture(hour: Any, tmp_path: Path) -> None:
    done = _run("--prometheus", hour.url, "--service", "search", "--end", _end(hour), "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = {"fleet", "service", "upgrade", "gpu-host", "self"}
    assert {path.name for path in tmp_path.iterdir()} == {f"grafana-{name}.png" for name in names}
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            assert image.width == 1800
            assert image.height > 1000
            # Panels on a page, and lines and bars in their own colours.
            colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or ()}
            for wanted in ((255, 255, 255), (0, 0x72, 0xB2), (0xD5, 0x5E, 0)):
                assert any(_near(colour, wanted) for colour in colours), (path, wanted)


def _near(one: Any, other: tuple[int, int, int]) -> bool:
    return all(abs(a - b) <= 8 for a, b in zip(one, other, strict=True))


def _mistake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """What it says to such arguments, in this process: each start of another takes most of a second."""
    monkeypatch.setattr(sys, "argv", ["grafana.pictures", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--service", "serch"), "--service serch: {url} has none of that name then; it has chat, search"),
        (("--service", "search", "--canary", "x"), "--canary x: {url} has none of that name then; it has resnet18"),
        (("--service", "search", "--range", "1y"), "1y: not a length of time; write it as 30m, 6h or 2d"),
        (("--service", "search", "--dashboard", "x"), "--dashboard x: there is none; known: fleet, gpu-host, "),
        (("--service", "search", "--out", "/dev/null/x"), "--out /dev/null/x: cannot be written (Not a directory)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_code_2(
    hour: Any,
    arguments: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dashboard = () if "--dashboard" in arguments else ("--dashboard", "service")
    where = ("--prometheus", hour.url, "--end", _end(hour), "--out", tmp_path)
    said = _mistake(capsys, monkeypatch, *where, *dashboard, *arguments)
    assert said.startswith(f"grafana.pictures: {line.format(url=hour.url)}")
    assert said.count("\n") == 1


def test_an_end_that_is_no_moment() -> None:
    done = _run("--service", "search", "--end", "noon")
    assert (done.returncode, done.stderr) == (
        2,
        "grafana.pictures: --end noon: not a moment; write it as 2026-01-31T12:00:00Z\n",
    )


def test_nobody_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        said = _mistake(capsys, monkeypatch, "--prometheus", url, "--service", "search", "--out", tmp_path)
    why = "does not answer ([Errno 111] Connection refused); is Prometheus there?"
    assert said == f"grafana.pictures: {url}: {why}\n"


@pytest.mark.parametrize("url", ["127.0.0.1:9090", "file:///etc/passwd", "localhost"])
def test_an_address_that_is_none(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _mistake(capsys, monkeypatch, "--prometheus", url, "--service", "search", "--out", tmp_path)
    assert said == f"grafana.pictures: {url}: not an address; write it as http://127.0.0.1:9090\n"
