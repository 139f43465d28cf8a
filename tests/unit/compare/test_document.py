"""Documents of results. After an intended change of the text:

UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/compare -k golden; git diff tests/golden
"""

import json
import math
import os

import msgspec
import numpy as np
import pytest
from jsonschema import validate
from measured_starts import compared

from infercanary.compare.changes import scan_runs
from infercanary.compare.comparison import compare_runs, concluded
from infercanary.compare.document import comparison_document, scan_document
from infercanary.compare.hosts import Difference, HostComparison, hosts_document
from infercanary.compare.overview import OverviewRow, overview_document
from infercanary.compare.read import read
from infercanary.compare.recording import RecordedRuns
from infercanary.judge.measures import MeasureVerdict
from infercanary.render.json import render_json
from infercanary.render.text import render_texts
from tests.programs import ROOT
from tests.scenarios import cases, typed

GOLDEN = ROOT / "tests/golden/comparison.txt"
SCHEMAS = ROOT / "docs/schemas"


def facts(document):
    return {fact.label: str(fact.value) for fact in document.facts if fact.value}


def overview():
    row = OverviewRow(
        canary="resnet18", host="gpu-host-1", service="search", image=f"registry.test/{'team/' * 9}search:1",
        origin="1.5", engine="torch 2.13.0", device="NVIDIA H100 80GB HBM3", starts=3, runs=123_456, model="file:1",
        latency_median_seconds=0.0575, latency_deviation_ratio=0.1234, latency_p90_seconds=0.06123, load_seconds=2.0,
        first_run_seconds=None, throughput_samples_per_second=123_456.0,
        throughput_from="sweep, batch 8 with 4 requests at a time", cost_per_1000=0.0347, energy_per_1000_joules=1234.5,
        host_memory_bytes=12.3e9,
    )  # fmt: skip
    slow = msgspec.structs.replace(
        row, host="cpu-host-1", latency_median_seconds=0.5, latency_above_fastest_ratio=115.5, image="search:2",
        latency_deviation_ratio=None, device="EPYC",
    )  # fmt: skip
    return overview_document([row, slow, msgspec.structs.replace(row, canary="other")])


def hosts():
    """Return a comparison of four hosts with each kind of finding."""
    row = OverviewRow(
        canary="resnet18", host="gpu-1", service="search", image="search:1 (3fa2c5)", origin="", engine="torch 2.13.0",
        device="EPYC", starts=3, runs=360, latency_median_seconds=0.018, latency_deviation_ratio=0.004,
        latency_p90_seconds=0.0184, load_seconds=None, first_run_seconds=None, throughput_samples_per_second=55.0,
        throughput_from="latency",
    )  # fmt: skip
    slow = [
        msgspec.structs.replace(row, host=f"gpu-{i}", latency_median_seconds=ms / 1000, device="Xeon")
        for i, ms in ((2, 18.2), (3, 62.5), (4, 63.0))
    ]
    quick, rest = ["gpu-1", "gpu-2"], ["gpu-3", "gpu-4"]
    differences = [
        Difference(
            0.004,
            0.975,
            0.912,
            0.993,
            hosts=[quick, rest],
            components={"cpu_quota": ["4", "1"], "kernel": ["6.1", "5.4"]},
        ),
        Difference(0.04, hosts=[quick, rest], components={"nvidia_driver": ["550", "535"]}),
        Difference(
            0.21, hosts=[["gpu-1", "gpu-3"], ["gpu-2", "gpu-4"]], components={"numpy": ["2.2", "1.26"]}
        ),
        Difference(hosts=[["gpu-1"], [*rest, "gpu-2"]], components={"cpu_model": ["EPYC", "Xeon"]}),
    ]
    conditions = {"gpu-1": [], "gpu-3": ["cgroup_throttled in 97 % of runs", "controls cpu_spin +41.3 %"]}
    return hosts_document(HostComparison([row, *slow], conditions, differences))


def test_golden_text(journal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, levels, torch, more in (
        ("old", [0.02, 0.0201], "2.7.0", {"measures": {"host_memory": 3e9}}),
        ("new", [0.024, 0.0241], "2.13.0", {"measures": {"host_memory": 3.9e9}}),
        ("few", [0.0202], "2.7.0", {"tags": ("warming",)}),
    ):
        journal(name, levels, torch=torch, **more)
    documents = []
    for name in ("new", "few"):
        old, new = (read([file]).canaries["resnet18"] for file in ("old", name))
        documents.append(comparison_document(compare_runs("resnet18", old, new), old, new))
    series = RecordedRuns([np.array([20.0, 20.1, 20.2, 20.1] * 12 + [24.0, 24.1, 24.2, 24.1] * 12)])
    documents.append(scan_document(scan_runs("", series), series))
    documents += [overview(), hosts()]
    text = render_texts(documents, ["a note"])
    assert max(map(len, text.splitlines())) <= 80
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_bottleneck_is_named_only_for_a_change(journal):
    """Regression: the answer was "unknown 228 %, scheduling -35 % of the change" for a shift of -3.2 % [-31.5,
    +36.8].
    """
    old = read([journal("old", [0.02, 0.0201])]).canaries["resnet18"]
    for name, levels, is_named in (("shaky", [0.016, 0.027], False), ("new", [0.026, 0.0261], True)):
        new = read([journal(name, levels, phases={"queue": 0.010})]).canaries["resnet18"]
        result = compare_runs("resnet18", old, new)
        assert ("bottleneck" in facts(comparison_document(result, old, new))) is is_named


SOURCES = """
0.0  | 1 | as given
0.02 | 1 | 2 %, as given
~    | 1 | two files of numbers
~    | 3 | from 4 restarts
"""


@cases(typed(SOURCES))
def test_a_document_says_where_the_restart_sd_is_from(restart_sd, count, words, numbers):
    old, new = (RecordedRuns([np.array(numbers(seed=10 * i + j)) for j in range(count)]) for i in range(2))
    document = comparison_document(compare_runs("", old, new, restart_sd=restart_sd), old, new)
    assert words in facts(document)["restart SD"]


def test_json_is_as_the_schema_says_whatever_is_not_finite():
    verdict = MeasureVerdict("inconclusive", 0.1, -1.0, math.inf, 0.5, 0.55)
    result = concluded(compared({}, 1, (1,)), {"energy": verdict})
    nothing = RecordedRuns(())
    answer = json.loads(
        render_json([comparison_document(result, nothing, nothing)]), parse_constant=pytest.fail
    )
    validate(answer, json.loads((SCHEMAS / "compare.v1.json").read_text()))
    assert answer["measures"]["energy"] == {
        "state": "inconclusive", "before": 0.5, "after": 0.55, "shift": 0.1,
        "low": -1.0, "high": None,
    }  # fmt: skip
    for broken in (
        {**answer, "verdict": "slower"},
        {**answer, "runs": "many"},
        {**answer, "schema_version": 2},
    ):
        with pytest.raises(Exception, match=r"is not|was expected"):
            validate(broken, json.loads((SCHEMAS / "compare.v1.json").read_text()))
