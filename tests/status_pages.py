"""Builders of status pages, for tests of output."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from infercanary.contract.report import Family, Point, Run
from infercanary.exporter import status
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.history import History
from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.probe_state import PolledProbe
from infercanary.exporter.report_facts import ReportFacts, read_facts
from infercanary.judge.model import Generation
from infercanary.pages.sentence import sentence

URL = "http://127.0.0.1:9798"
TABLES = yaml.safe_load((Path(__file__).parent / "golden/status_pages.yaml").read_text())
LONG = TABLES[".long"]


def page(probes, **others):
    given = {"ended": {}, "troubles": (), "left": (), **others}
    return asyncio.run(status.page(probes, version="1", **given)).decode()


def runs(count, seconds=0.02, canary="resnet"):
    return [
        Run(
            n, canary, n * 10.0, n * 10.0, "ok",
            tuple(seconds * (1 + 0.001 * (n * 7 % 5) + x) for x in (0.0, -0.01, 0.02)),
        )
        for n in range(count)
    ]  # fmt: skip


def healthy(name="search-1", ran="2", **container):
    probe = PolledProbe(Container(**{"service": "search", "name": name, "url": URL, **container}))
    probe.up, probe.trouble, probe.reported_at = True, "", time.monotonic() - 2
    probe.generations["b"] = Generation(
        service="search", container=name, boot_id="b", started_at=0.0, image="search:1", image_id=ran
    )
    probe.history.take(runs(3))
    return probe


def filled_in(value, text, now):
    """Replace TEXT by ``text``, and ages by times, in a value of a table."""
    if isinstance(value, str):
        return value.replace("TEXT", text)
    if isinstance(value, list):
        return [filled_in(each, text, now) for each in value]
    if not isinstance(value, dict):
        return value
    if "ago" in value:
        return now - value["ago"]
    return {name.replace("TEXT", text): filled_in(each, text, now) for name, each in value.items()}


def container(**fields):
    return PolledProbe(Container(**{"service": "search", "name": "search-1", **fields}))


def probe_of(row, text="", service=""):
    """Return a container of a table's row. A container with a name has 120 runs, unless the row says otherwise."""
    is_named = "name" in row
    fields = {"runs": 120 if is_named else 3, **filled_in(row, text, time.time())}
    name, canary, after = (
        fields.pop("name", "search-1"),
        fields.pop("canary", "resnet"),
        fields.pop("after", None),
    )
    if "container" in fields:
        probe = container(**fields.pop("container"))
        probe.up, probe.trouble = "says" in fields, ""
        del fields["runs"]
    else:
        known = {
            "service": service or name.rpartition("-")[0] or name,
            "image": "search:2" if is_named else "",
        }
        known |= {key: fields.pop(key) for key in Container.__struct_fields__ if key in fields}
        probe = healthy(name, fields.pop("ran", "2"), **known)
        probe.history = History()
        probe.history.take(runs(fields.pop("runs"), fields.pop("seconds", after or 0.02), canary))
    if is_named:
        probe.environment = {
            "torch": "2.13.0",
            "cpu": "AMD EPYC 7763 64-Core Processor",
            "env_LONG": "x" * 300,
        }
    if failed := fields.pop("failed", ""):
        outcome, _, detail = failed.partition(": ")
        probe.history.take([Run(999, canary, 2e3, 2e3, outcome, detail=detail)])
    if (labels := fields.pop("says", None)) is not None:
        points = (Point((*labels.values(),), 1.0),) if labels else ()
        probe.reported = read_facts([Family("infercanary_canary_state", "gauge", "", (*labels,), points)])
    if reported := fields.pop("reported", None):
        probe.reported = msgspec.convert(reported, ReportFacts)
    finding, said = fields.pop("finding", {}), fields.pop("sentence", "")
    if state := fields.pop("state", ""):
        result = {"state": state, **upgrade(after), **fields.pop("result", {})}
        finding = {"sides": fields.pop("sides", [[[name, "b"]]]), **finding, "result": result}
    if finding:
        found = msgspec.convert({"sentence": "", **finding}, Finding)
        probe.findings = {canary: msgspec.structs.replace(found, sentence=said or sentence(found.result))}
    for field, value in fields.items():
        setattr(probe, field, value)
    return probe


def upgrade(after):
    """Return the fields of a verdict on an upgrade to search:2, from 20 ms to ``after`` seconds. None: no verdict."""
    if after is None:
        return {}
    shift = after / 0.02 - 1
    return {
        "upgraded_at": time.time() - 7200, "shift": shift, "low": shift - 0.03, "high": shift + 0.03,
        "baseline": 0.02, "current": after, "baseline_image": "search:1", "candidate_image": "search:2",
        "medians": [[run.latencies[0] for run in runs(90, each)] for each in (0.02, after)],
    }  # fmt: skip


def cards():
    return [probe_of(row) for row in TABLES["cards"]]


def many(count=40):
    """Return the containers of a large host: two thirds were upgraded, and every tenth became slower."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"state": "equivalent", "after": 0.0201},
        {"state": "regressed", "after": 0.0251},
    )
    rows = [kinds[0 if not n % 3 else 1 if n % 10 else 2] for n in range(count)]
    return [probe_of({"name": f"service-{n:02}-1", "seconds": 0.02, **row}) for n, row in enumerate(rows)]


def filled(text):
    """Return a page with one text at every place for a text from a user or a probe."""
    probe = probe_of(TABLES["filled"], text)
    fresh = container(service=text, name=f"{text}2", url=f"http://{text}")
    fresh.up, fresh.reported = True, ReportFacts({text: "steady", f"{text}2": text})
    gone = {(text, text, "3"): (1, 1.0, text), probe.key: (1, 1.0, text)}
    return page([probe, fresh], troubles=[text], ended=gone, left=[(Container(service=text, name=text), 1.0)])
