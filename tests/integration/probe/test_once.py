"""``infercanary probe --once``: the command as people run it, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from watching import MODULES, until

COMMAND = [sys.executable, "-m", "infercanary", "probe", "--once"]


def scripted(**options: object) -> str:
    return (
        f"{{target: 'scripted:Scripted', options: {{{', '.join(f'{k}: {v}' for k, v in options.items())}}}}}"
    )


def settings(folder: Path, canaries: str, more: str = "") -> Path:
    path = folder / "probe.yaml"
    path.write_text(f"{more}\ncanaries: {canaries}\n")
    return path


def once(config: Path, modules: Path = MODULES, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """The exit code, and what was printed where."""
    done = subprocess.run(
        [*COMMAND, "--config", str(config), *arguments],
        cwd=modules, capture_output=True, check=False, timeout=120,
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, **environment},
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_torch_canary_and_the_machine_that_it_ran_on(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "tiny.py").write_text(
        "import torch\nprint('loaded')\ntorch.set_num_threads(64)\ndef model(): return torch.nn.Linear(4, 4)\n"
    )
    config = settings(
        tmp_path, "{tiny: {target: torch, options: {model: 'tiny:model', inputs: [{shape: [1, 4]}]}}}"
    )
    code, out, said = once(config, tmp_path)
    assert code == 0, said
    assert re.search(
        r"""
        ^InferCanary:\ one\ run,\ \d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d\ UTC\n\n
        canary\ tiny:\ (steady|warming)\n\n
        \ \ latency\ +median\ [\d.]+\ [µm]s,\ min\ [\d.]+\ [µm]s,\ IQR\ [\d.]+\ [µm]s,\ \d+\s+repeats\n
        \ \ phases\ +compute\ [\d.]+\ [µm]s
        """,
        out,
        re.VERBOSE | re.MULTILINE,
    ), out
    assert re.search(
        r"^  cold start +load [\d.]+ m?s, first run [\d.]+ [µm]?s, warm up [\d.]+ [µm]?s", out, re.MULTILINE
    )
    assert re.search(r"^controls\n\n  work .*\n  cpu_spin\S* +cpu +[\d.]+ [µm]s$", out, re.MULTILINE)
    assert re.search(
        rf"^environment\n(\n|  .*\n)+  torch +{re.escape(torch.__version__)}\n  CUDA ", out, re.MULTILINE
    )
    assert re.search(r"^  intra-op threads +64$", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80
    assert said.startswith("loading and warming up every canary")


def test_it_needs_neither_the_port_nor_the_journal_of_the_probe_beside_it(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text(
        '{"boot_id":"b","environment":"e","run":{"sequence":1,"canary":"gone","scheduled_at":1,"started_at":1,'
        '"outcome":"ok"}}\n'
    )
    before = journal.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        canaries = f"{{c: {scripted()}, closed: {scripted(open='raise')}}}"
        config = settings(tmp_path, canaries, f"listen: 127.0.0.1:{port}\njournal: {journal}")
        code, out, said = once(config)
    assert code == 3, said
    assert "canary c: steady" in out
    assert "gone" not in out
    assert [path.name for path in tmp_path.iterdir() if path != config] == ["journal.jsonl"]
    assert journal.read_bytes() == before


def test_a_canary_that_fails_is_shown_beside_those_that_do_not(tmp_path: Path) -> None:
    canaries = {
        "good": scripted(),
        "raises": scripted(values="raise"),
        "closed": scripted(open="raise"),
        "nan": scripted(values="nan"),
        "hangs": scripted(values="hang"),
        "never": scripted(open="hang"),
        "silent": scripted(values="nothing"),
    }
    text = ", ".join(f"{name}: {canary}" for name, canary in canaries.items())
    code, out, said = once(settings(tmp_path, f"{{{text}}}", "timeout_seconds: 1\nopen_timeout_seconds: 2"))
    assert code == 3, said
    blocks = {head: facts for head, facts in pairwise(out.split("\n\n")) if head.startswith("canary ")}
    # It sleeps for 1 ms; on a loaded machine it takes longer, never shorter.
    assert re.search(r"^  latency      median [1-9][\d.]* m?s", blocks["canary good: steady"], re.MULTILINE)
    assert "  raised       ValueError: values broken on purpose" in blocks["canary raises: failing"]
    assert (
        "  raised       cannot be opened: ValueError: open broken on purpose\n"
        in blocks["canary closed: failing"]
    )
    assert "  not finite   the output holds NaN or infinity" in blocks["canary nan: failing"]
    assert "  timed out    no result within 1 s (timeout_seconds)" in blocks["canary hangs: failing"]
    assert "  no run       it was not open in time" in blocks["canary never: failing"]
    assert "  output       not checked: " in blocks["canary silent: steady"]
    assert "  output  " not in blocks["canary good: steady"]


def test_a_mistake_is_one_line_after_what_the_others_did(tmp_path: Path) -> None:
    config = settings(tmp_path, f"{{bad: {scripted(open='usage')}, good: {scripted()}}}")
    code, out, said = once(config, MODULES, "--log-level", "error")
    assert code == 2
    assert "canary bad: failing\n\n  raised       cannot be opened: open: fix this\n" in out
    assert "canary good: steady\n" in out
    assert said == f"infercanary: {config}: canaries.bad: open: fix this\n"


def test_a_mistake_in_the_settings_prints_no_report(tmp_path: Path) -> None:
    code, out, said = once(settings(tmp_path, "{c: {target: nothing}}"))
    assert (code, out, len(said.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(("encoding", "micro"), [("ascii", "µ"), ("koi8-r", "?")])
def test_a_container_without_utf_8(tmp_path: Path, encoding: str, micro: str) -> None:
    """Where the encoding says nothing at all, click takes UTF-8."""
    config = settings(tmp_path, f"{{c: {scripted(seconds=0.0001)}}}")
    code, out, said = once(config, PYTHONIOENCODING=encoding)
    assert code == 0, said
    assert re.search(rf"median [\d.]+ {re.escape(micro)}s", out)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        if each.poll() is None:
            each.kill()
        each.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("script", "text", "seconds"),
    [({"open": "hang"}, "loading", 0.3), ({}, "running", 0.3), ({"values": "hang"}, "running", 3.0)],
    ids=["opening", "sampling", "running"],
)
def test_a_signal_ends_it_promptly_and_it_prints_no_report(
    tmp_path: Path,
    running: list[subprocess.Popen[bytes]],
    number: signal.Signals,
    script: dict[str, object],
    text: str,
    seconds: float,
) -> None:
    """It must not look as if every canary had been run."""
    log = tmp_path / "log"
    config = settings(tmp_path, f"{{c: {scripted(**script)}}}")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, "--config", str(config)], cwd=MODULES, stdout=subprocess.PIPE, stderr=errors
        )
    running.append(process)
    until(lambda: text in log.read_text(), "it does not say what it does", seconds=60)
    time.sleep(seconds)
    begin = time.monotonic()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, b"")
    assert time.monotonic() - begin < 9
    assert "Traceback" not in log.read_text()
