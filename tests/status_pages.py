"""Status pages, made by hand for the tests of what shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from infercanary.contract.report import Run
from infercanary.exporter import status
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.history import History
from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.probe_state import PolledProbe
from infercanary.exporter.report_facts import ReportFacts
from infercanary.judge.model import Generation
from infercanary.judge.result import Result
from infercanary.pages.sentence import sentence

URL = "http://127.0.0.1:9798"
TABLES = yaml.safe_load((Path(__file__).parent / "golden/status_pages.yaml").read_text("utf-8"))
LONG: str = TABLES[".long"]


def page(probes: Collection[PolledProbe], **others: Any) -> str:
    """Render a page."""
    given = {"ended": {}, "troubles": (), "left": (), **others}
    return asyncio.run(status.page(probes, version="1", **given)).decode()


def runs(count: int, seconds: float = 0.02, canary: str = "resnet") -> list[Run]:
    """Runs each ten seconds, of which none failed."""
    return [
        Run(
            n, canary, n * 10.0, n * 10.0, "ok",
            tuple(seconds * (1 + 0.001 * (n * 7 % 5) + x) for x in (0.0, -0.01, 0.02)),
        )
        for n in range(count)
    ]  # fmt: skip


def healthy(name: str = "search-1", image_id: str = "2", **container: Any) -> PolledProbe:
    """A probe that is up and whose canary ran, in a container of the image search:2."""
    probe = PolledProbe(Container(**{"service": "search", "name": name, "url": URL, **container}))
    probe.up, probe.trouble, probe.reported_at = True, "", time.monotonic() - 2
    probe.generations["b"] = Generation(
        service="search", container=name, boot_id="b", started_at=0.0, image="search:1", image_id=image_id
    )
    probe.history.take(runs(3))
    return probe


def filled_in(value: Any, text: str, now: float) -> Any:
    """Part of a table with ``text`` in the place of TEXT, and times that are so long ago."""
    if isinstance(value, str):
        return value.replace("TEXT", text)
    if isinstance(value, list):
        return [filled_in(each, text, now) for each in value]
    if not isinstance(value, dict):
        return value
    if "ago" in value:
        return now - value["ago"]
    return {name.replace("TEXT", text): filled_in(each, text, now) for name, each in value.items()}


def probe_of(row: dict[str, Any], text: str = "") -> PolledProbe:
    """A container of the tables, of 120 runs unless it says otherwise."""
    fields = {"seconds": row.get("after", 0.021), "runs": 120, **filled_in(row, text, time.time())}
    name, canary = fields.pop("name"), fields.pop("canary", "resnet")
    of_container = {"service": name.rpartition("-")[0] or name, "image": "search:2"}
    of_container |= {key: fields.pop(key) for key in Container.__struct_fields__ if key in fields}
    probe = healthy(name, **of_container)
    probe.environment = {"torch": "2.13.0", "cpu": "AMD EPYC 7763 64-Core Processor", "env_LONG": "x" * 300}
    probe.history = History()
    probe.history.take(runs(fields.pop("runs"), fields.pop("seconds"), canary))
    if failed := fields.pop("failed", ""):
        probe.history.take([Run(999, canary, 2e3, 2e3, "raised", detail=failed)])
    if reported := fields.pop("reported", {}):
        probe.reported = msgspec.convert(reported, ReportFacts)
    if "state" in fields:
        result = result_of(fields.pop("state"), fields.pop("after", None), fields.pop("result", {}))
        known = {"result": result, "sentence": fields.pop("sentence", "") or sentence(result)}
        finding = {"sides": fields.pop("sides", [[[name, "b"]]]), **fields.pop("finding", {})}
        rest = msgspec.convert({"result": {"state": "settling"}, "sentence": "", **finding}, Finding)
        probe.findings = {canary: msgspec.structs.replace(rest, **known)}
    for field, value in fields.items():
        setattr(probe, field, value)
    return probe


def result_of(state: str, after: float | None, fields: dict[str, Any]) -> Result:
    known: dict[str, Any] = {"state": state}
    if after is not None:
        shift, sides = (
            after / 0.02 - 1,
            [[run.latencies[0] for run in runs(90, each)] for each in (0.02, after)],
        )
        known |= {
            "upgraded_at": time.time() - 7200, "shift": shift, "low": shift - 0.03, "high": shift + 0.03,
            "baseline": 0.02, "current": after, "medians": sides,
            "baseline_image": "search:1", "candidate_image": "search:2",
        }  # fmt: skip
    return msgspec.convert(known | fields, Result)


def cards() -> list[PolledProbe]:
    """A container for each kind of verdict, one that is new, and one that is down."""
    return [probe_of(row) for row in TABLES["cards"]]


def many(count: int = 40) -> Sequence[PolledProbe]:
    """Containers of a large host: two of three were upgraded, and every tenth became slower."""
    return [
        probe_of({
            "name": f"service-{n:02}-1", "state": "equivalent" if n % 10 else "regressed",
            "after": 0.0201 if n % 10 else 0.0251, "seconds": 0.02,
        })
        if n % 3
        else healthy(f"service-{n:02}-1", service=f"service-{n:02}", image="search:2")
        for n in range(count)
    ]  # fmt: skip


def filled(text: str) -> str:
    """A page with one text at every place where other people's words may be."""
    probe = probe_of(TABLES["filled"], text)
    fresh = PolledProbe(Container(service=text, name=f"{text}2", url=f"http://{text}"))
    fresh.up, fresh.reported = True, ReportFacts({text: "steady", f"{text}2": text})
    gone = {(text, text, "3"): (1, 1.0, text), probe.key: (1, 1.0, text)}
    return page([probe, fresh], troubles=[text], ended=gone, left=[(Container(service=text, name=text), 1.0)])
