"""A real Prometheus with the data of a situation: the scrapes, and the results of the recording and alerting
rules.

A range query evaluates each rule over the past, as `promtool tsdb create-blocks-from rules` does. But that
command supports neither rules that read other rules, nor alerts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from grafana.prometheus import Prometheus
from grafana.situations import history
from grafana.situations.worlds import END, Situation
from infercanary.command.settings import UsageError

RULES = Path(__file__).parents[2] / "prometheus/rules"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit of PromQL."""
_READY_SECONDS = 30.0
_ENVIRONMENT = {"GOGC": "400", **os.environ}
"""Collect garbage less often: saves CPU time, takes more memory."""

Rule = Mapping[str, Any]
"""A rule as in its file."""


def missing() -> str:
    """Return the required programs that are not installed, in one line, or an empty text."""
    programs = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
    return f"not installed: {', '.join(programs)}" if programs else ""


@contextmanager
def prometheus(
    situation: Situation, write: Callable[[Situation, BinaryIO], None] = history.write, rules: Path = RULES
) -> Iterator[Prometheus]:
    """Run a Prometheus with the data of a situation on a free loopback port, until the end of the block.

    Args:
        situation: The situation.
        write: Writes the scrapes.
        rules: Folder of the rules.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scraped = folder / "scraped.om"
        with scraped.open("wb") as file:
            write(situation, file)
        _add_blocks(scraped, folder)
        for ready in _rounds(read_rules(rules)):
            evaluated = folder / "evaluated.om"
            with _running(folder) as asked, evaluated.open("w", encoding="utf-8") as lines:
                for rule in ready:
                    lines.writelines(_evaluated(rule, situation, asked))
                lines.write("# EOF\n")
            _add_blocks(evaluated, folder)
        with _running(folder) as asked:
            yield asked


def read_rules(folder: Path = RULES) -> list[Rule]:
    """Return all rules in the folder's files, in order."""
    files = [yaml.load(path.read_bytes(), yaml.CSafeLoader) for path in sorted(folder.glob("*.y*ml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def _rounds(rules: Sequence[Rule]) -> Iterator[Sequence[Rule]]:
    """Yield the rules in groups. A group reads only the results of earlier groups. Alerts come last."""
    rest = [rule for rule in rules if "record" in rule]
    while rest:
        names = {rule["record"] for rule in rest}
        ready = [
            r for r in rest if not names & ({*re.findall(r"[a-zA-Z_][\w:]*", r["expr"])} - {r["record"]})
        ]
        yield ready
        rest = [rule for rule in rest if rule not in ready]
    yield [rule for rule in rules if "alert" in rule]


def _evaluated(rule: Rule, situation: Situation, asked: Prometheus) -> Iterator[str]:
    start, step = END - situation.seconds, situation.step
    for series in asked.data("query_range", query=rule["expr"], start=start, end=END, step=step)["result"]:
        labels = {**series["metric"], **(rule.get("labels") or {})}
        labels.pop("__name__", None)
        if "alert" not in rule:
            yield from _lines(rule["record"], labels, series["values"])
            continue
        wait = rule.get("for", "0s")
        labels |= {"alertname": rule["alert"]}
        firing = [*_firing(series["values"], int(wait[:-1]) * UNITS[wait[-1]], step)]
        yield from _lines("ALERTS", {**labels, "alertstate": "firing"}, [(at, 1) for at, _ in firing])
        yield from _lines("ALERTS_FOR_STATE", labels, firing)


def _lines(name: str, labels: Mapping[str, str], points: Iterable[tuple[float, object]]) -> Iterator[str]:
    inner = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in labels.items())
    yield from (f"{name}{{{inner}}} {value} {at}\n" for at, value in points)


def _firing(
    points: Iterable[tuple[float, object]], wait: float, step: float
) -> Iterator[tuple[float, float]]:
    """Yield (time, start of the alert's condition) for each step at which the alert fires."""
    since = before = float("-inf")
    for at, _ in points:
        since = at if at - before > step else since
        before = at
        if at - since >= wait:
            yield at, since


def _add_blocks(file: Path, folder: Path) -> None:
    """Add an OpenMetrics file to Prometheus' database."""
    if file.stat().st_size <= len("# EOF\n"):
        return
    # Long blocks, because promtool reads the whole file again for each block.
    command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=18h", "openmetrics"]
    command += [str(file), str(folder / "data")]
    made = subprocess.run(command, check=False, capture_output=True, text=True, env=_ENVIRONMENT)  # noqa: S603
    if made.returncode != 0:
        raise RuntimeError(f"promtool cannot read {file}: {made.stderr}")
    file.unlink()


@contextmanager
def _running(folder: Path) -> Iterator[Prometheus]:
    config, log = folder / "prometheus.yml", folder / "log"
    config.write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--storage.tsdb.retention.time=100y", "--log.level=warn"]
    asked = Prometheus(f"http://{address}")
    deadline = time.monotonic() + _READY_SECONDS
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=_ENVIRONMENT) as process,  # noqa: S603
    ):
        try:
            while not _is_ready(asked):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Prometheus does not start: {log.read_text()}")
                time.sleep(0.02)
            yield asked
        finally:
            process.terminate()


def _is_ready(asked: Prometheus) -> bool:
    try:
        asked.data("query", query="1")
    except UsageError:
        return False
    return True
