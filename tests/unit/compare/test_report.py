"""One model across images and hosts, from real stores."""

import csv
import gzip
import io
import json
import os
import random
import shutil
from contextlib import closing

import pytest
from jsonschema import validate

from infercanary.compare.overview import kind
from infercanary.contract.journal import environment_id
from infercanary.store.store import open_store
from tests import factories
from tests.programs import GOLDEN, ROOT
from tests.scenarios import cases, scenarios, typed


@pytest.fixture
def run(infercanary):
    def run(*arguments, code=0, note=""):
        ended, out, err = infercanary("report", *arguments)
        assert ended == code, out + err
        assert (
            (err.count("\n") == 1 and out == "") if code == 2 else err == (note and f"infercanary: {note}\n")
        )
        return err if code == 2 else out

    return run


def take(store, image, levels, canary="resnet18", at=0.0, measures=None, **environment):
    """Store a start for each level, with 40 steady runs and one warm-up run."""
    rng = random.Random(image)
    for number, level in enumerate(levels):
        seconds = [9 * level, *(level * rng.lognormvariate(0, 0.002) for _ in range(40))]
        made = factories.start(
            f"{image}-{canary}-1", image, 1.7e9 + at + 1e4 * number, seconds, control=0, service="classify",
            canary=canary, environment={"torch": "2.7.0", "cpu_model": "EPYC", **environment}, measures=measures or {},
            cold_start={canary: {"load": 2.0, "first_run": 0.5}}, tags=lambda i: () if i else ("warming",),
        ).reporting(image=image)  # fmt: skip
        store.take(made.generation, made.samples)


ENGINES = """
{torch: 2.7.0, onnxruntime: "1.20"} | torch 2.7.0 | EPYC  # onnxruntime is only installed, but not used
{torch: 2.7.0, torch_cuda_device: H100} | torch 2.7.0 | H100
{onnxruntime: "1.20", onnx_provider: CPUExecutionProvider} | ONNX Runtime 1.20 | EPYC
{torch: "2", torch_cuda_device: H100, onnxruntime: "1", onnx_provider: CPU} | torch 2 or ONNX Runtime 1 | H100 or EPYC
{kserve_server: triton 2.51.0} | triton 2.51.0 | ""
{} | "" | EPYC
"""


@cases(typed(ENGINES))
def test_the_engine_is_one_that_ran(environment, engine, device):
    kept = factories.start(environment={"cpu_model": "EPYC", **environment}).generation
    assert kind(kept)[1:] == (engine, device)


def answer(run, *arguments):
    rows = json.loads(run(*arguments, "--json"), parse_constant=pytest.fail)
    validate(rows, json.loads((ROOT / "docs/schemas/report.v1.json").read_text()))
    return rows


def table(text):
    assert text.count("\r\n") == text.count("\n")
    return [*csv.DictReader(io.StringIO(text, newline=""))]


def sample(path, measures):
    with closing(open_store(path)) as store:
        take(store, "search:1", [0.02], measures=measures)


def test_images_and_hosts_side_by_side(run, tmp_path):
    with_cpu = open_store(tmp_path / "one.sqlite")
    take(with_cpu, "search:1", [0.040, 0.041, 0.0405])
    take(with_cpu, "search:2", [0.050])
    take(with_cpu, "search:1", [0.010], canary="other")
    with closing(open_store(tmp_path / "two.sqlite")) as with_gpu:
        take(with_gpu, "search:1", [0.004], torch_cuda_device="H100", onnxruntime="1.20")
    files = ("cpu-host=one.sqlite", "gpu-host=two.sqlite")
    # An exporter still has the other store open.
    rows = answer(run, *files, "--canary", "resnet*")
    with_cpu.close()
    assert [(row["host"], row["image"], row["device"], row["starts"], row["runs"]) for row in rows] == [
        ("gpu-host", "search:1 (1)", "H100", 1, 40),
        ("cpu-host", "search:1 (1)", "EPYC", 3, 120),
        ("cpu-host", "search:2 (2)", "EPYC", 1, 40),
    ]
    for name, expected in (
        ("latency_median_seconds", [0.004, 0.0405, 0.05]), ("latency_above_fastest_ratio", [0, 9.1, 11.5]),
        ("load_seconds", [2.0] * 3),
    ):  # fmt: skip
        assert [row[name] for row in rows] == pytest.approx(expected, rel=0.1)
    assert [row["latency_deviation_ratio"] is None for row in rows] == [True, False, True]
    assert rows[1]["latency_deviation_ratio"] == pytest.approx(0.0124, rel=0.1)
    text = run(*files, "--html", "report.html")
    assert max(map(len, text.splitlines())) <= 80
    assert " other: latency" in text
    page = (tmp_path / "report.html").read_text()
    assert "gpu-host · search:1 (1) · H100" in page
    assert "http" not in page.split("</style>")[1]


MODELS = """
# New weights are a separate row, like a new image.
["file:1", "file:2", ""] | [["file:1", 1], ["file:2", 2]]
# These are weights without a seed.
[weights-0.0, weights-1.1, weights-2.2, weights-3.3] | [["", 4]]
"""


@cases(typed(MODELS))
def test_each_model_of_an_image_is_a_row(models, rows, run, tmp_path):
    with closing(open_store(tmp_path / "one.sqlite")) as store:
        for number, model in enumerate(models):
            known = {"model:resnet18": model, "settings:resnet18": "s1"} if model else {}
            take(store, "search:1", [0.01], at=1e5 * number, **known)
    found = answer(run, "one.sqlite")
    assert [[row["model"], row["starts"]] for row in found] == rows
    csv_rows = table(run("one.sqlite", "--format", "csv"))
    assert [(row["model"], row["settings"]) for row in csv_rows] == [(row["model"], "s1") for row in found]


JOURNAL_ROW = """
host | old
service |
started_at | 2023-11-14T22:13:20.000000Z
started_at_unix_seconds | 1700000000.0
repeats | 3
merged_runs | 1
outcome | ok
tags | warming;gpu_clock_limited (sw_thermal)
detail | '=cmd|"x"
host_memory_bytes | 3000000000.0
device_memory_bytes |
throughput@8x1_samples_per_second | 800.0
throughput@8x2_samples_per_second | 900.0
measure_colour | 7.0
"""


def test_a_journal_has_a_row_for_each_run(run, journal, tmp_path):
    journal(
        "old.jsonl", [0.02, 0.03], count=3, tags=("warming", "gpu_clock_limited"), clock_reason="sw_thermal",
        detail='=cmd|"x"', sm_clock=1.4e9,
        measures={"host_memory": 3e9, "throughput@8x1": 800.0, "throughput@8x2": 900.0, "colour": 7.0},
    )  # fmt: skip
    with (tmp_path / "old.jsonl").open("ab") as file:
        file.write((tmp_path / "old.jsonl").read_bytes())  # the journal's content is there twice
        file.write(b'{"boot_id":"torn')
    rows = table(run("old.jsonl", "--format", "csv", note="old.jsonl: 1 truncated line left out"))
    assert [row["boot_id"] for row in rows] == ["old.jsonl-0"] * 3 + ["old.jsonl-1"] * 3
    expected = dict(scenarios(JOURNAL_ROW))
    assert expected == {name: rows[0][name] for name in expected}
    assert rows[0]["environment_id"] == environment_id({"torch": "2.7.0", "python": "3.11"})
    median = float(rows[0]["latency_median_seconds"])
    assert float(rows[0]["latency_min_seconds"]) == pytest.approx(0.99 * median)
    assert float(rows[0]["phase_compute_seconds"]) == pytest.approx(median - 0.002)
    assert float(rows[0]["control_cpu_spin_seconds"]) == pytest.approx(4e-4, rel=0.05)
    journal("bad.jsonl", [0.02], count=1, outcome="raised", latencies=(), phases={}, controls={})
    row = table(run("bad.jsonl", "--format", "csv"))[0]
    assert (row["outcome"], row["latency_median_seconds"], row["repeats"]) == ("raised", "", "0")


def test_each_run_of_a_store_on_demand(run, tmp_path):
    sample(tmp_path / "gpu.sqlite", {"device_memory": 2e9})
    rows = table(run("h100=gpu.sqlite", "--format", "csv", "--runs"))
    assert len(rows) == 41
    assert (rows[0]["container"], rows[0]["host"]) == ("search:1-resnet18-1", "h100")
    assert rows[0]["environment_id"] == environment_id({"torch": "2.7.0", "cpu_model": "EPYC"})
    assert rows[0]["device_memory_bytes"] == "2000000000.0"


# Measures | samples a second, joules of a thousand samples, and source of the rate
PRICED = """
{} | 50.0 | ~ | latency
{throughput: 400.0, energy: 4.0} | 400.0 | 500 | runs
{throughput: 50.0, throughput@8x1: 1250.0, throughput@8x4: 2000.0, energy: 0.5} | 2000.0 | 500 | SWEEP
# The cost would be infinite, which JSON cannot represent.
{throughput@8x1: 5.0e-324, throughput: 400.0, energy: 5.0e-324} | 400.0 | ~ | runs
{throughput@8x1: 1.0e+308, throughput: 400.0, energy: 1.0e+308} | 400.0 | ~ | runs
"""


@cases(
    typed(PRICED.replace("SWEEP", "sweep, batch 8 with 4 requests at a time")),
)
def test_a_price_gives_the_cost_of_inferences(measures, rate, energy, origin, run, tmp_path):
    for name in ("gpu", "other"):
        sample(tmp_path / f"{name}.sqlite", measures)
    files = ("gpu.sqlite", "other.sqlite", "--price", "2500", "--price", "other=5000")
    gpu, other = sorted(answer(run, *files), key=lambda row: row["host"])
    assert gpu["throughput_samples_per_second"] == pytest.approx(rate, rel=0.01)
    assert gpu["cost_per_1000"] == pytest.approx(2500 / 3600 / rate * 1000, rel=0.01)
    assert other["cost_per_1000"] == pytest.approx(2 * gpu["cost_per_1000"])
    assert (gpu["energy_per_1000_joules"], gpu["throughput_from"]) == (energy, origin)
    run(*files, "--html", "report.html")
    assert f"gpu · {origin}" in (tmp_path / "report.html").read_text()
    costs = {float(row["cost_per_1000"]) for row in table(run(*files, "--format", "csv"))}
    assert costs == {gpu["cost_per_1000"], other["cost_per_1000"]}
    unpriced = answer(run, "gpu.sqlite", "--price", "gpu=2.5", "other.sqlite")
    assert {row["host"]: row["cost_per_1000"] is None for row in unpriced} == {"gpu": False, "other": True}


MISTAKES = """
gpu.sqlite --price -1                | --price -1: give the price of an hour
gpu.sqlite --price inf               | --price inf: give the price of an hour
gpu.sqlite --price nan               | --price nan: give the price of an hour
gpu.sqlite --price $2                | --price $2: give the price of an hour
gpu.sqlite --price h=2               | --price h=2: give the price of an hour
gpu.sqlite --runs                    | gpu.sqlite: each run is a row of a table; give --format csv or --json
old.jsonl                            | old.jsonl: each run is a row of a table; give --format csv or --json
old.jsonl --format csv --price 2     | old.jsonl: each run is a row of a table
old.jsonl --format csv --service a   | old.jsonl: each run is a row of a table
old.jsonl --format csv --canary b*   | old.jsonl: no run of canary `b*`, service `*`
none.jsonl --format csv              | none.jsonl: cannot be read (No such file
empty.jsonl --format csv             | empty.jsonl: is empty; give a journal, or numbers
words.txt                            | words.txt: not the judge's store; give the file that the exporter's --store names
broken.jsonl --format csv            | broken.jsonl:2: not a line of a journal
a/gpu.sqlite gpu.sqlite              | gpu.sqlite: two files of the host `gpu`; give each a host name, HOST=FILE
none.sqlite                          | none.sqlite: cannot be read (No such file
empty.sqlite                         | empty.sqlite: no start of canary `*`, service `*`, has 8 steady runs
postgresql://me@127.0.0.1:1/x?sslmode=require | postgresql://127.0.0.1:1/x: connection failed
older.sqlite                         | older.sqlite: not the judge's store, or a store of 0.1.0
lone.sqlite                          | lone.sqlite: not the judge's store, or copied without its -wal file
gpu.sqlite --html pipe               | --html: `pipe` is a device or a pipe; name a file
"""


@cases(MISTAKES)
def test_a_mistake_is_one_line(arguments, line, run, journal, tmp_path):
    sample(tmp_path / "gpu.sqlite", {})
    with closing(open_store(tmp_path / "empty.sqlite")):  # an open store has its tables in the -wal file
        shutil.copy(tmp_path / "empty.sqlite", tmp_path / "lone.sqlite")
    older = GOLDEN / "store_schema_1.sqlite.gz"
    (tmp_path / "older.sqlite").write_bytes(gzip.decompress(older.read_bytes()))
    journal("old.jsonl", [0.02], count=2)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "words.txt").write_text("nothing of the kind")
    (tmp_path / "broken.jsonl").write_text((tmp_path / "old.jsonl").read_text().split("\n")[0] + "\nwords\n")
    os.mkfifo(tmp_path / "pipe")
    assert run(*arguments.split(), code=2).startswith(f"infercanary: {line}")
