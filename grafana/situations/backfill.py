"""A real Prometheus that has a situation: what was scraped, and what the recording and alerting rules make of it.

Rules are evaluated over the past by asking for each at every step, as `promtool tsdb create-blocks-from rules` does;
but that command knows no rule that reads another one, and no alert.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import yaml
from prometheus_client.utils import floatToGoString

from grafana.prometheus import Prometheus
from grafana.situations import history
from grafana.situations.worlds import END, Situation

RULES = Path(__file__).parents[2] / "prometheus/rules"
PROGRAMS = ("prometheus", "promtool")
_READY_SECONDS = 30.0
_ENVIRONMENT = {"GOGC": "400", **os.environ}
"""Its garbage is collected more seldom, which takes less CPU time and more memory."""
_number: Callable[[float], str] = floatToGoString  # prometheus_client leaves it untyped
_NAME = re.compile(r"[a-zA-Z_][\w:]*")


class Rule(NamedTuple):
    """One of Prometheus' rules."""

    name: str
    expression: str
    labels: Mapping[str, str]
    waits: float | None
    """Of an alert, how long it holds before it fires, in seconds; None of a recording rule."""


def missing() -> list[str]:
    """What is needed and not installed.

    Returns:
        Names of programs.
    """
    return [program for program in PROGRAMS if shutil.which(program) is None]


@contextmanager
def prometheus(
    situation: Situation, write: Callable[[Situation, BinaryIO], None] = history.write
) -> Iterator[Prometheus]:
    """A Prometheus on a free port of loopback, that has the situation.

    Args:
        situation: Which.
        write: Writes what is scraped.

    Yields:
        It, until the end of the block.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scraped = folder / "scraped.om"
        with scraped.open("wb") as file:
            write(situation, file)
        _blocks(scraped, folder)
        for ready in _rounds(rules()):
            evaluated = folder / "evaluated.om"
            with _running(folder) as asked, evaluated.open("w", encoding="utf-8") as lines:
                for rule in ready:
                    lines.writelines(_evaluated(rule, situation, asked))
                lines.write("# EOF\n")
            _blocks(evaluated, folder)
        with _running(folder) as asked:
            yield asked


def _rounds(rest: Sequence[Rule]) -> Iterator[Sequence[Rule]]:
    """Rules that may be evaluated together, since what they read is there."""
    first = True
    while rest:
        recorded = {rule.name for rule in rest if rule.waits is None}
        ready = [rule for rule in rest if not recorded & ({*_NAME.findall(rule.expression)} - {rule.name})]
        if first:  # an alert may ask whether there are thresholds at all, without the name of one
            ready = [rule for rule in ready if rule.waits is None]
            first = False
        yield ready
        rest = [rule for rule in rest if rule not in ready]


def rules() -> list[Rule]:
    """All rules of the stack.

    Returns:
        In the files' order.
    """
    found = []
    for path in sorted(RULES.glob("*.y*ml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                labels = {**(group.get("labels") or {}), **(rule.get("labels") or {})}
                if "record" in rule:
                    found.append(Rule(rule["record"], rule["expr"], labels, None))
                else:
                    found.append(Rule(rule["alert"], rule["expr"], labels, _seconds(rule.get("for", "0s"))))
    return found


def _seconds(length: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)([smhd])", length))


def _evaluated(rule: Rule, situation: Situation, asked: Prometheus) -> Iterator[str]:
    start = END - situation.seconds
    for labels, points in asked.over(rule.expression, start, END, situation.step).results:
        labels = {name: text for name, text in labels.items() if name != "__name__"} | dict(rule.labels)
        if rule.waits is None:
            yield from _lines(rule.name, labels, points)
        else:
            labels |= {"alertname": rule.name, "alertstate": "firing"}
            yield from _lines("ALERTS", labels, _firing(points, rule.waits, situation.step))


def _firing(
    points: Iterable[tuple[float, float]], waits: float, step: float
) -> Iterator[tuple[float, float]]:
    since = before = -1.0
    for at, _ in points:
        if at - before > step:
            since = at
        before = at
        if at - since >= waits:
            yield at, 1.0


def _lines(name: str, labels: Mapping[str, str], points: Iterable[tuple[float, float]]) -> Iterator[str]:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    series = f"{name}{{{inner}}}" if inner else name
    yield from (f"{series} {_number(value)} {at}\n" for at, value in points)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _blocks(file: Path, folder: Path) -> None:
    """Add a file of OpenMetrics to the database."""
    if file.stat().st_size <= len("# EOF\n"):
        return
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    made = subprocess.run(command, check=False, capture_output=True, text=True, env=_ENVIRONMENT)  # noqa: S603
    if made.returncode != 0:
        raise RuntimeError(f"promtool cannot read {file}: {made.stderr}")
    file.unlink()


@contextmanager
def _running(folder: Path) -> Iterator[Prometheus]:
    config, log = folder / "prometheus.yml", folder / "log"
    config.write_text("{}")
    (folder / "data").mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--storage.tsdb.retention.time=100y", "--log.level=warn"]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_ENVIRONMENT)  # noqa: S603
    try:
        _wait(f"http://{address}/-/ready", process, log)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(20)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Prometheus does not start: {log.read_text()}")
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310
        except OSError:
            time.sleep(0.02)
        else:
            return
