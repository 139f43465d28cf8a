"""One model across images and hosts, from real stores."""

from __future__ import annotations

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
from infercanary.command.settings import UsageError
from infercanary.compare import page
from infercanary.compare.overview import _kind
from infercanary.judge.model import Generation, Sample
from infercanary.store.sqlite import SqliteStore

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["infercanary", "report", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert exit_.value.code == code, out + err
        assert (err.count("\n") == 1 and out == "") if code == 2 else err == ""
        return err if code == 2 else out

    return run


def take(
    store: SqliteStore,
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
    with_cpu = SqliteStore.open(tmp_path / "one.sqlite")
    take(with_cpu, "search:1", [0.040, 0.041, 0.0405])
    take(with_cpu, "search:2", [0.050])
    take(with_cpu, "search:1", [0.010], canary="other")
    with_gpu = SqliteStore.open(tmp_path / "two.sqlite")
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
    assert gpu["engine"] == "torch 2.7.0" and gpu["slower"] == 0
    assert old["median"] == pytest.approx(0.0405, rel=0.002)
    assert old["deviation"] == pytest.approx(0.0124, rel=0.1) and new["deviation"] is None
    assert new["slower"] == pytest.approx(11.5, rel=0.01)
    assert (old["runs"], old["load"], old["first_run"]) == (120, 2.0, 0.5)
    text = run("cpu-host=one.sqlite", "gpu-host=two.sqlite", "--html", "report.html")
    assert re.search(r"^other\n  █{24}   10\.0\d ms +fastest\n", text, re.MULTILINE)
    assert re.search(r"^  █{2}  +4\.00\d ms +fastest\n", text, re.MULTILINE)
    assert "cpu-host · classify · search:1 (1) · torch 2.7.0 · EPYC" in text
    page = (tmp_path / "report.html").read_text()
    assert (
        "H100" in page and page.count('<td class="bar"><svg') == 4 and "http" not in page.split("</style>")[1]
    )


def test_two_models_of_one_image_are_two_rows(run: Run, tmp_path: Path) -> None:
    """New weights are an upgrade as a new image is: their latencies were one row, ±47.8 %."""
    with closing(SqliteStore.open(tmp_path / "one.sqlite")) as store:
        for number, (model, level) in enumerate([("file:1", 0.010), ("file:2", 0.020), ("", 0.0202)]):
            known = {"model:resnet18": model, "settings:resnet18": "s1"} if model else {}
            take(store, "search:1", [level], at=1e5 * number, **known)
    rows = json.loads(run("one.sqlite", "--json"))
    assert [(row["model"], row["settings"], row["starts"]) for row in rows] == [
        ("file:1", "s1", 1),
        ("file:2", "s1", 2),
    ]
    text = run("one.sqlite", "--html", "report.html")
    assert "classify · search:1 (1) · model file:2 · torch 2.7.0 · EPYC" in text
    assert "model file:1" in (tmp_path / "report.html").read_text()
    assert run("one.sqlite", "--format", "csv").splitlines()[1].endswith(",file:1,s1")


def test_weights_without_a_seed_are_one_row(run: Run, tmp_path: Path) -> None:
    with closing(SqliteStore.open(tmp_path / "one.sqlite")) as store:
        for number in range(4):
            take(
                store,
                "search:1",
                [0.010],
                at=1e5 * number,
                **{"model:resnet18": f"weights-{number}.{number}"},
            )
    assert [row["starts"] for row in json.loads(run("one.sqlite", "--json"))] == [4]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["none.sqlite"], "no file `none.sqlite`; give the file that the exporter's --store names"),
        (["words.txt"], "words.txt: not the judge's store; give the file that the exporter's --store names"),
        (["a/one.sqlite", "b/one.sqlite"], "b/one.sqlite: two files of the host `one`; name them, HOST=FILE"),
        (
            ["empty.sqlite"],
            "empty.sqlite: no start of canary `*`, service `*`, has 8 steady runs; wait for them",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(run: Run, tmp_path: Path, arguments: list[str], line: str) -> None:
    (tmp_path / "words.txt").write_text("nothing of the kind, but long enough")
    SqliteStore.open(tmp_path / "empty.sqlite").close()
    assert run(*arguments, code=2) == f"infercanary: {line}\n"


def test_a_page_goes_through_a_link_and_replaces_no_pipe(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(real)
    page.write(str(link), "text")
    assert link.is_symlink() and real.read_text() == "text"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is a device or a pipe; name a file"):
        page.write(str(pipe), "text")
    assert pipe.is_fifo()
