"""Tables as CSV: what a spreadsheet or a script reads is what was there."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command import cli as cli
from infercanary.compare.spreadsheet import lines, moment
from infercanary.contract.journal import environment_id
from infercanary.contract.text import printable
from infercanary.judge.model import Generation, Sample
from infercanary.store.sqlite import SqliteStore

Run = Callable[..., "tuple[str, str]"]
PRICE = "give what an hour costs, a number above 0, such as 2.5 or gpu-1=2.5"
STORE = "give the file that the exporter's --store names"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["infercanary", "report", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert exit_.value.code == code, out + err
        assert code == 0 or (out == "" and err.count("\n") == 1)
        return out, err

    return run


def table(text: str) -> list[dict[str, str]]:
    assert text.count("\r\n") == text.count("\n")
    return [*csv.DictReader(io.StringIO(text, newline=""))]


cells = st.one_of(st.text(), st.floats(), st.none(), st.integers())


@given(st.lists(st.lists(cells, min_size=3, max_size=3), max_size=5))
def test_what_is_written_is_read_again(rows: list[list[str | float | None]]) -> None:
    read = [*csv.reader(io.StringIO("".join(lines(["a", "b", "c"], rows)), newline=""), strict=True)]
    assert read[0] == ["a", "b", "c"] and len(read) == len(rows) + 1
    for row, got in zip(rows, read[1:], strict=True):
        for cell, text in zip(row, got, strict=True):
            if isinstance(cell, str):
                assert text.removeprefix("'") == printable(cell).removeprefix("'")
                assert not text.lstrip().startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))
            elif isinstance(cell, int):
                assert text == str(cell)
            elif cell is None or not math.isfinite(cell):
                assert text == ""
            else:
                assert float(text) == cell


@pytest.mark.parametrize("sign", "=+-@＝＋－＠")
def test_no_text_is_a_formula(sign: str) -> None:
    text = "".join(lines([f"{sign}1"], [[f"  {sign}cmd|' /C calc'!A0"]]))
    assert text == f"'{sign}1\r\n'  {sign}cmd|' /C calc'!A0\r\n"


def test_many_rows_come_in_parts() -> None:
    parts = [*lines(["n"], ([float(i)] for i in range(2500)))]
    assert len(parts) == 3 and "".join(parts).split() == ["n", *(str(float(i)) for i in range(2500))]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.7e9, "2023-11-14T22:13:20.000000Z"), (-1.0, "1969-12-31T23:59:59.000000Z"), (1e300, "")],
)
def test_a_moment(seconds: float, text: str) -> None:
    assert moment(seconds) == text


def test_a_journal_has_a_row_for_each_run(run: Run, journal: Callable[..., str], tmp_path: Path) -> None:
    journal(
        "old.jsonl", [0.02, 0.03], count=3, tags=("warming", "gpu_clock_limited"), clock_reason="sw_thermal",
        detail='=cmd|"x"', sm_clock=1.4e9,
        measures={"host_memory": 3e9, "throughput@8x1": 800.0, "throughput@8x2": 900.0, "colour": 7.0},
    )  # fmt: skip
    with (tmp_path / "old.jsonl").open("ab") as file:
        file.write((tmp_path / "old.jsonl").read_bytes())  # written twice
        file.write(b'{"boot_id":"torn')
    out, err = run("old.jsonl", "--format", "csv")
    rows = table(out)
    assert err == "infercanary: old.jsonl: 1 truncated line left out\n"
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
    assert [*first][-6:] == [
        "control_cpu_spin_seconds", "measure_colour", "phase_compute_seconds", "phase_h2d_seconds",
        "throughput@8x1_samples_per_second", "throughput@8x2_samples_per_second",
    ]  # fmt: skip


def test_failed_runs_are_rows_too(run: Run, journal: Callable[..., str]) -> None:
    journal("old.jsonl", [0.02], count=2, outcome="raised", latencies=(), phases={}, controls={})
    row = table(run("old.jsonl", "--format", "csv")[0])[0]
    assert (row["outcome"], row["latency_median_seconds"], row["repeats"]) == ("raised", "", "0")


def take(path: Path, measures: dict[str, float], service: str = "search") -> None:
    rng = random.Random(1)
    store = SqliteStore.open(path)
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
    take(tmp_path / "gpu.sqlite", {"device_memory": 2e9})
    (row,) = table(run("gpu.sqlite", "--format", "csv")[0])
    assert (row["host"], row["service"], row["image"], row["runs"]) == ("gpu", "search", "search:1 (1)", "20")
    assert float(row["latency_median_seconds"]) == pytest.approx(0.02, rel=0.01)
    assert (row["device_memory_bytes"], row["cost_per_1000"], row["throughput_from"]) == (
        "2000000000.0",
        "",
        "latency",
    )
    rows = table(run("h100=gpu.sqlite", "--format", "csv", "--runs")[0])
    assert len(rows) == 20 and rows[0]["container"] == "search-1" and rows[0]["host"] == "h100"
    assert rows[0]["environment_id"] == environment_id({"torch": "2.7.0"})


@pytest.mark.parametrize(
    ("measures", "rate", "words"),
    [
        (
            {},
            50.0,
            "13.9 for 1,000 inferences at 50 samples/s by its latency, as if a request were one inference",
        ),
        (
            {"throughput": 400.0, "energy": 4.0},
            400.0,
            "1.74 for 1,000 inferences at 400 samples/s by its own requests; 500 J for 1,000 inferences",
        ),
        (
            {
                "throughput": 50.0,
                "throughput@8x1": 1250.0,
                "throughput@8x4": 2000.0,
                "energy": 0.5,
                "host_memory": 3e9,
            },
            2000.0,
            "0.347 for 1,000 inferences at 2,000 samples/s at batch 8 with 4 requests at a time (sweep); 500 J for "
            "1,000 inferences; 3 GB of host memory",
        ),
    ],
)
def test_a_price_gives_the_cost_of_inferences(
    run: Run, tmp_path: Path, measures: dict[str, float], rate: float, words: str
) -> None:
    take(tmp_path / "gpu.sqlite", measures)
    take(tmp_path / "other.sqlite", measures)
    files = ("gpu.sqlite", "other.sqlite", "--price", "2500", "--price", "other=5000")
    out = run(*files, "--html", "report.html")[0]
    assert words in " ".join(out.split())
    assert words in (tmp_path / "report.html").read_text()
    gpu, other = sorted(json.loads(run(*files, "--json")[0]), key=lambda row: row["host"])
    of = gpu["efficiency"]
    assert of["throughput"] == pytest.approx(rate, rel=0.01)
    assert of["cost_per_1000"] == pytest.approx(2500 / 3600 / rate * 1000, rel=0.01)
    assert of["energy_per_1000"] == (
        500 if "energy" in measures else None
    )  # of 8 samples in a request, or of one
    assert other["efficiency"]["cost_per_1000"] == pytest.approx(2 * of["cost_per_1000"])
    rows = table(run(*files, "--format", "csv")[0])
    assert {float(row["cost_per_1000"]) for row in rows} == {
        of["cost_per_1000"], other["efficiency"]["cost_per_1000"]
    }  # fmt: skip


@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_a_measure_that_nothing_can_have_costs_nothing(run: Run, tmp_path: Path, value: float) -> None:
    """Its cost would be infinite, which is no JSON."""
    take(tmp_path / "gpu.sqlite", {"throughput@8x1": value, "throughput": 400.0, "energy": value})
    (row,) = json.loads(run("gpu.sqlite", "--price", "2.5", "--json")[0], parse_constant=pytest.fail)
    assert row["efficiency"]["throughput"] == 400.0 and row["efficiency"]["energy_per_1000"] is None


def test_without_a_price_there_is_no_cost(run: Run, tmp_path: Path) -> None:
    take(tmp_path / "gpu.sqlite", {})
    out = run("gpu.sqlite", "--price", "gpu=2.5")[0]
    assert "for 1,000 inferences" in out and "inferences" not in run("gpu.sqlite")[0]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gpu.sqlite", "--price", "-1"], f"--price -1: {PRICE}"),
        (["gpu.sqlite", "--price", "inf"], f"--price inf: {PRICE}"),
        (["gpu.sqlite", "--price", "nan"], f"--price nan: {PRICE}"),
        (["gpu.sqlite", "--price", "$2"], f"--price $2: {PRICE}"),
        (["gpu.sqlite", "--price", "h=2"], "--price h=2: no host `h`; there are: gpu"),
        (["gpu.sqlite", "--json", "--format", "csv"], "--json and --format csv: exclude each other; give one of them"),
        (["gpu.sqlite", "--runs"], "--runs: each run is a row of a table; give --format csv too"),
        (["old.jsonl"], "old.jsonl: a journal: each run is a row of a table; give --format csv too"),
        (["old.jsonl", "--format", "csv", "--price", "2"],
         "--price and --html: are of the table of stores, not of runs; leave them out"),
        (["old.jsonl", "--format", "csv", "--service", "a"],
         "--service: old.jsonl is a journal, which names no service; leave it out"),
        (["old.jsonl", "--format", "csv", "--canary", "b*"],
         "old.jsonl: no run of canary `b*`, service `*`; wait for some"),
        (["none.jsonl", "--format", "csv"], f"no file `none.jsonl`; {STORE}"),
        (["empty.jsonl", "--format", "csv"], "empty.jsonl: is empty; give a journal, or numbers"),
        (["words.txt", "--format", "csv"], f"words.txt: not the judge's store; {STORE}"),
        (["broken.jsonl", "--format", "csv"],
         "broken.jsonl:2: not a line of a journal (JSON is malformed: invalid character (byte 0)); keep other lines "
         "out of it"),
        (["zero.jsonl", "--format", "csv"],
         "zero.jsonl:2: 0 s is not a latency: those are finite and above zero; take it out"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(
    run: Run, journal: Callable[..., str], tmp_path: Path, arguments: list[str], line: str
) -> None:
    take(tmp_path / "gpu.sqlite", {})
    journal("old.jsonl", [0.02], count=2)
    journal("zero.jsonl", [0.02], count=2, latencies=(0.0,))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "words.txt").write_text("nothing of the kind")
    (tmp_path / "broken.jsonl").write_text((tmp_path / "old.jsonl").read_text().split("\n")[0] + "\nwords\n")
    err = run(*arguments, code=2)[1]
    assert err == f"infercanary: {line}\n"


def test_too_many_columns_are_refused(run: Run, journal: Callable[..., str]) -> None:
    journal("old.jsonl", [0.02], count=1, phases={f"p{i}": 1.0 for i in range(1001)})
    assert "more than 1,000 phases, controls and measures" in run("old.jsonl", "--format", "csv", code=2)[1]
