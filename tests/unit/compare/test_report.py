"""One model across images and hosts, from real stores."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from jsonschema import validate

from infercanary.command import cli as cli
from infercanary.compare.overview import _kind
from infercanary.contract.journal import environment_id
from infercanary.judge.model import Generation, Sample
from infercanary.store.store import Store, open_store

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0, note: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["infercanary", "report", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert exit_.value.code == code, out + err
        assert (
            (err.count("\n") == 1 and out == "") if code == 2 else err == (note and f"infercanary: {note}\n")
        )
        return err if code == 2 else out

    return run


def take(
    store: Store,
    image: str,
    levels: list[float],
    canary: str = "resnet18",
    at: float = 0.0,
    **environment: str,
) -> None:
    """A start for each level, of 40 steady runs and one that was warming."""
    rng = random.Random(image)
    for number, level in enumerate(levels):
        generation = Generation(
            service="classify", container=f"{image}-{canary}-1", boot_id=f"{image}-{canary}-{number}-{at}",
            image=image, image_id=image, started_at=1.7e9 + at + 1e4 * number,
            environment={"torch": "2.7.0", "cpu_model": "EPYC", **environment},
            cold_start={canary: {"load": 2.0, "first_run": 0.5}},
        )  # fmt: skip
        samples = [
            Sample(
                sequence=i, canary=canary, started_at=1.7e9 + at + 1e4 * number + 10 * i, outcome="ok",
                median=level * (9 if i == 0 else rng.lognormvariate(0, 0.002)), tags=("warming",) if i == 0 else (),
            )
            for i in range(41)
        ]  # fmt: skip
        store.take(generation, samples)


@pytest.mark.parametrize(
    ("environment", "engine", "device"),
    [
        ({"torch": "2.7.0", "onnxruntime": "1.20"}, "torch 2.7.0", "EPYC"),  # which is only installed
        ({"torch": "2.7.0", "torch_cuda_device": "H100"}, "torch 2.7.0", "H100"),
        ({"onnxruntime": "1.20", "onnx_provider": "CPUExecutionProvider"}, "ONNX Runtime 1.20", "EPYC"),
        (
            {"onnxruntime": "1.20", "onnx_provider": "CPU", "torch": "2.7.0", "torch_cuda_device": "H100"},
            "torch 2.7.0 or ONNX Runtime 1.20",
            "H100 or EPYC",
        ),
        ({"kserve_server": "triton 2.51.0"}, "triton 2.51.0", ""),
        ({}, "", "EPYC"),
    ],
)
def test_the_engine_is_one_that_ran(environment: dict[str, str], engine: str, device: str) -> None:
    kept = Generation(
        service="s",
        container="c",
        boot_id="b",
        started_at=1.0,
        environment={"cpu_model": "EPYC", **environment},
    )
    assert _kind(kept)[1:] == (engine, device)


def test_images_and_hosts_side_by_side(run: Run, tmp_path: Path) -> None:
    with_cpu = open_store(tmp_path / "one.sqlite")
    take(with_cpu, "search:1", [0.040, 0.041, 0.0405])
    take(with_cpu, "search:2", [0.050])
    take(with_cpu, "search:1", [0.010], canary="other")
    with_gpu = open_store(tmp_path / "two.sqlite")
    take(with_gpu, "search:1", [0.004], torch_cuda_device="H100", onnxruntime="1.20")
    with_gpu.close()
    # The other one's exporter still has its store open.
    rows = json.loads(run("cpu-host=one.sqlite", "gpu-host=two.sqlite", "--canary", "resnet*", "--json"))
    validate(rows, json.loads((Path(__file__).parents[3] / "docs/schemas/report.v1.json").read_text()))
    with_cpu.close()
    assert [(row["host"], row["image"], row["device"], row["starts"]) for row in rows] == [
        ("gpu-host", "search:1 (1)", "H100", 1),
        ("cpu-host", "search:1 (1)", "EPYC", 3),
        ("cpu-host", "search:2 (2)", "EPYC", 1),
    ]
    gpu, old, new = rows
    assert gpu["engine"] == "torch 2.7.0" and gpu["latency_above_fastest_ratio"] == 0
    assert old["latency_median_seconds"] == pytest.approx(0.0405, rel=0.002)
    assert old["latency_deviation_ratio"] == pytest.approx(0.0124, rel=0.1)
    assert new["latency_deviation_ratio"] is None
    assert new["latency_above_fastest_ratio"] == pytest.approx(11.5, rel=0.01)
    assert (old["runs"], old["load_seconds"], old["first_run_seconds"]) == (120, 2.0, 0.5)
    text = run("cpu-host=one.sqlite", "gpu-host=two.sqlite", "--html", "report.html")
    assert re.findall(r"^  (\w+): latency$", text, re.MULTILINE) == ["other", "resnet18"]
    assert max(map(len, text.splitlines())) <= 80
    page = (tmp_path / "report.html").read_text()
    assert "gpu-host · search:1 (1) · H100" in page
    assert "4 ms" in text and "http" not in page.split("</style>")[1]


def test_two_models_of_one_image_are_two_rows(run: Run, tmp_path: Path) -> None:
    """New weights are an upgrade as a new image is: their latencies were one row, ±47.8 %."""
    with closing(open_store(tmp_path / "one.sqlite")) as store:
        for number, (model, level) in enumerate([("file:1", 0.010), ("file:2", 0.020), ("", 0.0202)]):
            known = {"model:resnet18": model, "settings:resnet18": "s1"} if model else {}
            take(store, "search:1", [level], at=1e5 * number, **known)
    rows = json.loads(run("one.sqlite", "--json"))
    assert [(row["model"], row["settings"], row["starts"]) for row in rows] == [
        ("file:1", "s1", 1),
        ("file:2", "s1", 2),
    ]
    run("one.sqlite", "--html", "report.html")
    assert "<td>file:1</td>" in (tmp_path / "report.html").read_text()
    csv_row = table(run("one.sqlite", "--format", "csv"))[0]
    assert (csv_row["model"], csv_row["settings"]) == ("file:1", "s1")
    assert [*csv_row][:4] == ["canary", "host", "service", "image"]


def test_weights_without_a_seed_are_one_row(run: Run, tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "one.sqlite")) as store:
        for number in range(4):
            take(
                store,
                "search:1",
                [0.010],
                at=1e5 * number,
                **{"model:resnet18": f"weights-{number}.{number}"},
            )
    assert [row["starts"] for row in json.loads(run("one.sqlite", "--json"))] == [4]


def table(text: str) -> list[dict[str, str]]:
    assert text.count("\r\n") == text.count("\n")
    return [*csv.DictReader(io.StringIO(text, newline=""))]


def test_a_journal_has_a_row_for_each_run(run: Run, journal: Callable[..., str], tmp_path: Path) -> None:
    journal(
        "old.jsonl", [0.02, 0.03], count=3, tags=("warming", "gpu_clock_limited"), clock_reason="sw_thermal",
        detail='=cmd|"x"', sm_clock=1.4e9,
        measures={"host_memory": 3e9, "throughput@8x1": 800.0, "throughput@8x2": 900.0, "colour": 7.0},
    )  # fmt: skip
    with (tmp_path / "old.jsonl").open("ab") as file:
        file.write((tmp_path / "old.jsonl").read_bytes())  # written twice
        file.write(b'{"boot_id":"torn')
    rows = table(run("old.jsonl", "--format", "csv", note="old.jsonl: 1 truncated line left out"))
    assert len(rows) == 6 and [row["boot_id"] for row in rows[2:4]] == ["old.jsonl-0", "old.jsonl-1"]
    first = rows[0]
    median = float(first["latency_median_seconds"])
    assert (first["host"], first["service"], first["container"]) == ("old", "", "")
    assert first["environment_id"] == environment_id({"torch": "2.7.0", "python": "3.11"})
    assert first["started_at"] == "2023-11-14T22:13:20.000000Z"
    assert float(first["started_at_unix_seconds"]) == 1.7e9
    assert float(first["latency_min_seconds"]) == pytest.approx(0.99 * median)
    assert (first["repeats"], first["merged_runs"], first["outcome"]) == ("3", "1", "ok")
    assert (first["tags"], first["detail"]) == ("warming;gpu_clock_limited (sw_thermal)", '\'=cmd|"x"')
    assert float(first["phase_compute_seconds"]) == pytest.approx(median - 0.002)
    assert float(first["control_cpu_spin_seconds"]) == pytest.approx(4e-4, rel=0.05)
    assert (first["host_memory_bytes"], first["device_memory_bytes"]) == ("3000000000.0", "")
    assert (first["throughput@8x1_samples_per_second"], first["measure_colour"]) == ("800.0", "7.0")
    assert {*[*first][-6:]} == {
        "control_cpu_spin_seconds", "measure_colour", "phase_compute_seconds", "phase_h2d_seconds",
        "throughput@8x1_samples_per_second", "throughput@8x2_samples_per_second",
    }  # fmt: skip


def test_failed_runs_are_rows_too(run: Run, journal: Callable[..., str]) -> None:
    journal("old.jsonl", [0.02], count=2, outcome="raised", latencies=(), phases={}, controls={})
    row = table(run("old.jsonl", "--format", "csv"))[0]
    assert (row["outcome"], row["latency_median_seconds"], row["repeats"]) == ("raised", "", "0")


def sample(path: Path, measures: dict[str, float], service: str = "search") -> None:
    rng = random.Random(1)
    store = open_store(path)
    generation = Generation(
        service=service, container="search-1", boot_id="boot", image="search:1", image_id="sha256:1",
        started_at=1.7e9, environment={"torch": "2.7.0"},
    )  # fmt: skip
    samples = [
        Sample(
            sequence=i, canary="resnet18", started_at=1.7e9 + 10 * i, outcome="ok",
            median=0.02 * rng.lognormvariate(0, 0.002), measures=measures,
        )
        for i in range(20)
    ]  # fmt: skip
    store.take(generation, samples)
    store.close()


def test_a_store_is_a_table_and_each_run_on_demand(run: Run, tmp_path: Path) -> None:
    sample(tmp_path / "gpu.sqlite", {"device_memory": 2e9})
    (row,) = table(run("gpu.sqlite", "--format", "csv"))
    assert (row["host"], row["service"], row["image"], row["runs"]) == ("gpu", "search", "search:1 (1)", "20")
    assert float(row["latency_median_seconds"]) == pytest.approx(0.02, rel=0.01)
    assert (row["device_memory_bytes"], row["cost_per_1000"], row["throughput_from"]) == (
        "2000000000.0",
        "",
        "latency",
    )
    rows = table(run("h100=gpu.sqlite", "--format", "csv", "--runs"))
    assert len(rows) == 20 and rows[0]["container"] == "search-1" and rows[0]["host"] == "h100"
    assert rows[0]["environment_id"] == environment_id({"torch": "2.7.0"})


@pytest.mark.parametrize(
    ("measures", "rate", "words"),
    [
        ({}, 50.0, "49.98 13.89 gpu · latency"),
        ({"throughput": 400.0, "energy": 4.0}, 400.0, "400 1.736 500 J gpu · runs"),
        (
            {"throughput": 50.0, "throughput@8x1": 1250.0, "throughput@8x4": 2000.0, "energy": 0.5, "host_memory": 3e9},
            2000.0,
            "2,000 0.3472 500 J gpu · sweep, batch 8 with 4 requests at a time",
        ),
    ],
)  # fmt: skip
def test_a_price_gives_the_cost_of_inferences(
    run: Run, tmp_path: Path, measures: dict[str, float], rate: float, words: str
) -> None:
    sample(tmp_path / "gpu.sqlite", measures)
    sample(tmp_path / "other.sqlite", measures)
    files = ("gpu.sqlite", "other.sqlite", "--price", "2500", "--price", "other=5000")
    run(*files, "--html", "report.html")
    cells = re.sub("<[^>]*>", " ", (tmp_path / "report.html").read_text().partition("<main>")[2])
    assert words in " ".join(cells.split())
    gpu, other = sorted(json.loads(run(*files, "--json")), key=lambda row: row["host"])
    assert gpu["throughput_samples_per_second"] == pytest.approx(rate, rel=0.01)
    assert gpu["cost_per_1000"] == pytest.approx(2500 / 3600 / rate * 1000, rel=0.01)
    assert gpu["energy_per_1000_joules"] == (
        500 if "energy" in measures else None
    )  # of 8 samples in a request, or of one
    assert other["cost_per_1000"] == pytest.approx(2 * gpu["cost_per_1000"])
    costs = {float(row["cost_per_1000"]) for row in table(run(*files, "--format", "csv"))}
    assert costs == {gpu["cost_per_1000"], other["cost_per_1000"]}
    unpriced = json.loads(run("gpu.sqlite", "--price", "gpu=2.5", "other.sqlite", "--json"))
    assert [row["cost_per_1000"] is None for row in sorted(unpriced, key=lambda r: r["host"])] == [
        False,
        True,
    ]


@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_a_measure_that_nothing_can_have_costs_nothing(run: Run, tmp_path: Path, value: float) -> None:
    """Its cost would be infinite, which is no JSON."""
    sample(tmp_path / "gpu.sqlite", {"throughput@8x1": value, "throughput": 400.0, "energy": value})
    (row,) = json.loads(run("gpu.sqlite", "--price", "2.5", "--json"), parse_constant=pytest.fail)
    assert row["throughput_samples_per_second"] == 400.0 and row["energy_per_1000_joules"] is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        *((["gpu.sqlite", "--price", price], f"--price {price}: give what an hour costs") for price in
          ("-1", "inf", "nan", "$2", "h=2")),
        (["gpu.sqlite", "--runs"], "gpu.sqlite: each run is a row of a table; give --format csv or --json"),
        (["old.jsonl"], "old.jsonl: each run is a row of a table; give --format csv or --json"),
        (["old.jsonl", "--format", "csv", "--price", "2"], "old.jsonl: each run is a row of a table"),
        (["old.jsonl", "--format", "csv", "--service", "a"], "old.jsonl: each run is a row of a table"),
        (["old.jsonl", "--format", "csv", "--canary", "b*"], "old.jsonl: no run of canary `b*`, service `*`"),
        (["none.jsonl", "--format", "csv"], "none.jsonl: cannot be read (No such file"),
        (["empty.jsonl", "--format", "csv"], "empty.jsonl: is empty; give a journal, or numbers"),
        (["words.txt"], "words.txt: not the judge's store; give the file that the exporter's --store names"),
        (["broken.jsonl", "--format", "csv"], "broken.jsonl:2: not a line of a journal"),
        (["a/gpu.sqlite", "gpu.sqlite"], "gpu.sqlite: two files of the host `gpu`; name them, HOST=FILE"),
        (["none.sqlite"], "none.sqlite: cannot be read (No such file"),
        (["empty.sqlite"], "empty.sqlite: no start of canary `*`, service `*`, has 8 steady runs"),
        (["postgresql://me@db/x?sslmode=require"], "report reads files, not PostgreSQL; give a store in SQLite"),
        (["older.sqlite"], "older.sqlite: not the judge's store, or one of 0.1.0, which can no longer be read"),
        (["gpu.sqlite", "--html", "pipe"], "--html: `pipe` is a device or a pipe; name a file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(
    run: Run, journal: Callable[..., str], tmp_path: Path, arguments: list[str], line: str
) -> None:
    sample(tmp_path / "gpu.sqlite", {})
    open_store(tmp_path / "empty.sqlite").close()
    older = Path(__file__).parents[2] / "golden/store_schema_1.sqlite.gz"
    (tmp_path / "older.sqlite").write_bytes(gzip.decompress(older.read_bytes()))
    journal("old.jsonl", [0.02], count=2)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "words.txt").write_text("nothing of the kind")
    (tmp_path / "broken.jsonl").write_text((tmp_path / "old.jsonl").read_text().split("\n")[0] + "\nwords\n")
    os.mkfifo(tmp_path / "pipe")
    assert run(*arguments, code=2).startswith(f"infercanary: {line}")
