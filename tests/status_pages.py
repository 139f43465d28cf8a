"""Status pages, made by hand for the tests of what shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any

from infercanary.contract.report import Run
from infercanary.exporter import status
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.history import History
from infercanary.exporter.judging.findings import Findings, PastVerdict, Sides
from infercanary.exporter.probe_state import PolledProbe
from infercanary.exporter.report_facts import ReportFacts
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Generation
from infercanary.judge.operators import Operators, OperatorShift
from infercanary.judge.origin import Origin
from infercanary.judge.result import Causes, Change, Looks, Part, Result
from infercanary.pages.sentence import sentence
from tests.results import findings_of, upgraded

URL = "http://127.0.0.1:9798"
LONG = "registry.example.org:5000/platform/search/embedding-server-with-a-long-name:2026.11.25-1a2b3c4d5e6f"


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
    start = Generation(
        service="search", container=name, boot_id="b", started_at=0.0, image="search:1", image_id=image_id
    )  # fmt: skip
    probe.generations["b"] = start
    probe.history.take(runs(3))
    return probe


def found(result: Result | None = None, name: str = "search-1", words: str = "", **findings: Any) -> Findings:
    """Findings with a verdict on the canary, about this container."""
    result = result or upgraded("equivalent", 0.001)
    return findings_of(
        judgements={"resnet": result}, sentences={"resnet": words or sentence(result)},
        **{"sides": {"resnet": Sides(new=frozenset({(name, "b")}))}, **findings},
    )  # fmt: skip


def judged(name: str, result: Result, seconds: float = 0.02, **findings: Any) -> PolledProbe:
    """A container of 120 runs with a verdict."""
    probe = healthy(name, service=name.rpartition("-")[0], image=result.candidate_image or "search:2")
    probe.environment = {"torch": "2.13.0", "cpu": "AMD EPYC 7763 64-Core Processor", "env_LONG": "x" * 300}
    probe.history = History()
    probe.history.take(runs(120, seconds))
    probe.findings = found(result, name, **findings)
    return probe


def _compared(state: Any, after: float, **fields: Any) -> Result:
    shift = after / 0.02 - 1
    sides = [[run.latencies[0] for run in runs(90, seconds)] for seconds in (0.02, after)]
    known: dict[str, Any] = {
        "upgraded_at": time.time() - 7200, "low": shift - 0.03, "high": shift + 0.03,
        "baseline": 0.02, "current": after, "medians": (sides[0], sides[1]),
    }  # fmt: skip
    return upgraded(state, shift, **known | fields)


def cards() -> list[PolledProbe]:
    """A container for each kind of verdict, one that is new, and one that is down."""
    source = "https://github.com/acme/search"
    origins = Origin("1a2b3c4d5e6f", source, "1.4"), Origin("9f8e7d6c5b4a", source, "1.5")
    changes = Change("torch", "2.7.0", "2.13.0"), Change("env_ONEDNN_MAX_CPU_ISA", None, "DEFAULT")
    shift = OperatorShift(
        "aten::conv2d", 0.0098, 0.0312, 0.84, "grew", "mkldnn_convolution → _slow_conv2d_forward"
    )
    by_image = Causes(
        image=Part(0.34, 0.31, 0.37), cause="image", bottlenecks={"compute": 0.97}, has_controls=True,
        changes=changes, operators=Operators("explained", (shift,), 0.84),
    )  # fmt: skip
    by_host = Causes(host=Part(0.2, 0.17, 0.23), cause="host", controls={"matmul": 0.19})
    measures = {
        "host_memory": MeasureVerdict("regressed", 0.31, 0.28, 0.34, 1.1e9, 1.44e9),
        "throughput@8x1": MeasureVerdict("equivalent", 0.001, -0.02, 0.02, 410.0, 410.4),
        "energy": MeasureVerdict("settling"),
    }
    past = PastVerdict(
        answered_at=1.79e9, upgraded_at=1.79e9, state="regressed", sentence="regressed +10.0 % [+8.0, +12.0]: image",
        baseline_image="search:1", candidate_image="search:2", rolled_back=True,
    )  # fmt: skip
    new = judged(
        "fresh-1",
        Result(state="no_baseline", candidate_image="fresh:latest", runs=11, current=0.02),
        sides={"resnet": Sides(others=frozenset({("fresh-1", "b")}))},
    )
    new.history = History()
    new.history.take(runs(11))
    settling = upgraded(
        "settling", None, runs=7, looks=Looks(next=12), upgraded_at=time.time() - 90, baseline=0.02, current=0.021
    )  # fmt: skip
    image = {"origins": origins, "causes": by_image, "baseline_image": LONG, "candidate_image": f"{LONG}-2"}
    drifted = judged("rank-1", _compared("equivalent", 0.0201), 0.022)
    drifted.findings = found(
        _compared("equivalent", 0.0201), "rank-1",
        drifts={("rank-1", "resnet"): Drift(shift=0.1, onset=time.time() - 9e4, host=Part(0.02, 0.01, 0.03))},
    )  # fmt: skip
    failing = judged("vision-1", _compared("equivalent", 0.0201))
    failing.reported = ReportFacts({"resnet": "out_of_memory"}, {"resnet": "CUDA out of memory: 2 GiB"})
    failing.runs_lost, failing.neighbours = 7, "train-1"
    failing.history.take([Run(1, "resnet", 2e3, 2e3, "raised", detail="CUDA out of memory")])
    down = PolledProbe(Container(service="gone", name="gone-1", url=URL, image="gone:1"))
    down.trouble = "unreachable: connection refused: nothing listens there"
    down.history.take(runs(60))
    not_polled = PolledProbe(Container(service="lost", name="lost-1", url=None))
    not_polled.trouble = "no network in common with the exporter"
    return [
        down, failing, new, drifted,
        not_polled,
        judged("search-1", _compared("regressed", 0.0268, **image), 0.0268, measures={"resnet": measures},
               answers={"resnet": (past,)}),
        judged("chat-1", _compared("regressed", 0.024, causes=by_host, contended=2, hosts=3), 0.024),
        judged("embed-1", _compared("equivalent", 0.0201, concurrent=2, concurrent_shift=0.08)),
        judged("speech-1", _compared("unconfirmed", 0.0212, looks=Looks(next=48, needs_starts=True)), 0.0212),
        judged("code-1", settling),
        judged("draw-1", _compared("improved", 0.016, causes=Causes(cause="image", changes=changes[:1])), 0.016),
    ]  # fmt: skip


def many(count: int = 40) -> Sequence[PolledProbe]:
    """Containers of a large host: two of three were upgraded, and every tenth became slower."""
    regressed, equivalent = _compared("regressed", 0.0251), _compared("equivalent", 0.0201)
    return [
        judged(f"service-{n:02}-1", equivalent if n % 10 else regressed)
        if n % 3
        else healthy(f"service-{n:02}-1", service=f"service-{n:02}", image="search:2")
        for n in range(count)
    ]


def filled(text: str) -> str:
    """A page with one text at every place where other people's words may be."""
    origins, change = (
        (Origin(text, "", text), Origin(f"{text}2", "", f"{text}2")),
        Change(text, text, f"{text}2"),
    )
    causes = Causes(
        cause="image", changes=(change,), controls={text: 0.1}, tags={text: (0.1, 0.9)},
        operators=Operators("explained", (OperatorShift(text, 0.01, 0.02, 1.0, "grew", text, text),), 1.0),
    )  # fmt: skip
    result = _compared(
        "regressed", 0.03, causes=causes, origins=origins, baseline_image=f"{text}:1", candidate_image=f"{text}:2"
    )  # fmt: skip
    past = PastVerdict(
        answered_at=2.0, upgraded_at=2.0, state="regressed", sentence=text, baseline_image=f"{text}:1",
        candidate_image=f"{text}:2",
    )  # fmt: skip
    drift = Drift(shift=0.1, onset=1.0, changes=(change,), operators=causes.operators)
    probe = healthy(
        text, service=text, image=f"{text}:1", image_id=f"{text}:2", url_missing=text, notes=(text,)
    )
    probe.trouble, probe.environment, probe.history = text, {text: text}, History()
    probe.neighbours = text
    probe.reported = ReportFacts({text: "failing", "b": "failing"}, {text: text, "b": text})
    probe.history.take([*runs(3, canary=text), Run(99, text, 99.0, 99.0, "raised", detail=text)])
    probe.findings = findings_of(
        judgements={text: result}, sentences={text: f"regressed: {text}"}, answers={text: (past,)},
        measures={text: {text: MeasureVerdict("regressed", 0.3, 0.2, 0.4, 1.0, 1.3)}},
        drifts={text: {text: drift}}, sides={text: Sides(new=frozenset({(text, "b")}))},
    )  # fmt: skip
    fresh = PolledProbe(Container(service=text, name=f"{text}2", url=f"http://{text}"))
    fresh.up, fresh.reported = True, ReportFacts({text: "steady", f"{text}2": text})
    gone = {(text, text, "3"): (1, 1.0, text), probe.key: (1, 1.0, text)}
    return page([probe, fresh], troubles=[text], ended=gone, left=[(Container(service=text, name=text), 1.0)])
