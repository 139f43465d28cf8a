"""`infercanary ab` as a person runs it, with real containers; it leaves nothing, however it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from harness import ROOT, build, compose, eventually, run

HERE = Path(__file__).parent / "ab"
REPOSITORY = "infercanary-ab-test"
BASE = f"{REPOSITORY}:base"
LABEL = "infercanary.ab"
SHORT = ("--restarts", "3", "--runs", "8", "--start-timeout", "60")
FAST = ("--both", "env.INFERCANARY_INTERVAL_SECONDS=0.1")  # not the half second of an experiment
QUICK = (*SHORT, *FAST)


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.out)
        return result


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Builds an image on the base's with these lines of a Dockerfile; all are gone afterwards."""
    if not run("docker", "images", "--quiet", "infercanary-example:dev"):
        compose("build", "--quiet", "classify", seconds=900)
    context = tmp_path_factory.mktemp("ab")
    shutil.copytree(ROOT / "probe", context / "probe", ignore=shutil.ignore_patterns("__pycache__"))
    for path in HERE.iterdir():
        if path.is_file():
            shutil.copy(path, context)
    run("docker", "build", "--quiet", "--tag", BASE, str(context), seconds=300)

    def derived(tag: str, *lines: str) -> str:
        name = f"{REPOSITORY}:{tag}"
        build(name, "\n".join([f"FROM {BASE}", *lines, ""]))
        return name

    yield derived
    tags = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split()
    run("docker", "rmi", "--force", *tags)


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """The setting `config`: a probe.yaml that names the target of fixed work."""
    path = tmp_path / "probe.yaml"
    path.write_text('canaries: {work: {target: "work:Work"}}\n')
    return f"config={path}"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of any experiment: neither container nor process, after each test; and no network at any time."""
    before = networks()
    yield
    eventually("no container of an experiment is left", 30, lambda: not containers())
    eventually("no process of an experiment is left", 30, lambda: not processes())
    assert {name for name in networks() - before if LABEL in name} == set()


def containers(*filters: str) -> list[str]:
    """Those of experiments, running or not."""
    chosen = [word for each in (f"label={LABEL}", *filters) for word in ("--filter", each)]
    return run("docker", "ps", "--all", "--quiet", *chosen).split()


def networks() -> set[str]:
    return set(run("docker", "network", "ls", "--format", "{{.Name}} {{.Labels}}").splitlines())


def processes() -> list[str]:
    """Experiments, their reapers and their probes on this host."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "infercanary.ab" in line or "infercanary.command.cli ab" in line or "/dev/stdin" in line:
            found.append(line)
    return found


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "infercanary", "ab", *arguments]


def ab(*arguments: str, seconds: float = 900, **options: Any) -> Ended:
    """The command, run to its end."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=seconds, check=False, cwd=HERE, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def begun() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command and returns when its first container runs."""
    children: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
            **options,
        )
        children.append(child)
        eventually("a container runs", 60, lambda: child.poll() is not None or containers("status=running"))
        assert child.poll() is None, child.communicate()
        return child

    yield begin
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


def until(child: subprocess.Popen[str], progress: str) -> None:
    """Wait until a line of the command's progress says so."""
    assert child.stderr is not None
    assert any(progress in line for line in child.stderr), "it ended before"


@pytest.mark.parametrize("trial", [1, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(2, 12))])
def test_the_same_image_is_not_called_slower(images: Callable[..., str], settings: str, trial: int) -> None:
    ended = ab(BASE, BASE, "--both", settings, *QUICK, "--json", "--both", "cpus=1", "--both", "memory=512m")
    assert ended.code in (0, 3), ended
    result = ended.json
    assert result["verdict"] in ("equivalent", "unconfirmed", "inconclusive")
    assert result["exit_code"] == ended.code
    assert result["canary"] == "work"
    assert (
        result["a"]["image_id"]
        == result["b"]["image_id"]
        == run("docker", "inspect", "--format", "{{.Id}}", BASE).strip()
    )
    assert result["a"]["starts"] == result["b"]["starts"] >= 3
    assert result["a"]["image_bytes"] > 1e6
    assert {"start", "first_answer", "load", "first_run", "time_to_steady"} == set(result["a"]["cold_start"])
    # Of the starts, since a pair that neighbours disturbed does not count.
    sides = "".join(re.findall(r"start \d+ of \d+ at most: ([AB])\b", ended.err))
    assert len(sides) >= 6 and sides.startswith("ABBAAB"), sides
    assert result["causes"] is None or not result["causes"]["changes"]
    assert "start 1 of 6 at most: A\n" in ended.err
    assert "left" in ended.err


def test_a_slower_image_ends_with_1_and_says_why(
    images: Callable[..., str], settings: str, tmp_path: Path
) -> None:
    slower = images("slower", "ENV WORK_BYTES=32e6")
    page = tmp_path / "report.html"
    ended = ab(
        BASE,
        slower,
        "--both",
        settings,
        "--restarts",
        "6",
        "--runs",
        "8",
        *FAST,
        "--html",
        str(page),
        "--both",
        "cpus=1",
    )
    assert ended.code == 1, ended
    assert ended.out.startswith("work: regressed ")
    assert "work_bytes 8000000 → 32000000" in " ".join(ended.out.split())
    assert "compute" in ended.out and "first answer" in ended.out
    text = page.read_text()
    assert '<article class="regressed">' in text and "starts in order of time" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.campaign  # the same as the step of action.yml runs it; tests/integration/github has the other steps
def test_the_step_of_the_action_answers_for_a_slower_image(
    images: Callable[..., str], settings: str, tmp_path: Path
) -> None:
    slower = images("slower", "ENV WORK_BYTES=32e6")
    options = ["--both " + settings, "--restarts 6", "--runs 8", " ".join(FAST), "--both cpus=1"]
    found = {name: tmp_path / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    environment = {
        "COMMAND": "ab", "BASELINE": BASE, "CANDIDATE": slower, "OPTIONS": "\n".join(options), "NAME": "Latency",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "RUNNER_TEMP": str(tmp_path), **{name: str(path) for name, path in found.items()},
    }  # fmt: skip
    script = str(ROOT / "deploy/github/compare")
    done = subprocess.run(
        [script], env=environment, cwd=HERE, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    outputs = dict(line.split("=", 1) for line in found["GITHUB_OUTPUT"].read_text().splitlines())
    assert outputs["code"] == "1" and "regressed" in Path(outputs["report"]).read_text()
    summary = found["GITHUB_STEP_SUMMARY"].read_text()
    assert summary.startswith("### Latency\n\n") and "regressed +" in summary and "| latency |" in summary


@pytest.mark.campaign
@pytest.mark.parametrize("limit", ["cpuset=0", "cpus=0.5"])
@pytest.mark.parametrize("trial", range(1, 4))
def test_a_busy_loop_in_the_new_image_is_the_images(
    images: Callable[..., str], limit: str, trial: int
) -> None:
    """Beside the server, in its container: it takes the CPU in runs as in the rest of the time."""
    busy = images("busy", 'CMD ["sh", "-c", "(while :; do :; done) & exec python serve.py"]')
    ended = ab(BASE, busy, "--restarts", "6", "--runs", "8", *FAST, "--both", limit, "--json")
    print(ended.out)
    # A quota holds back every other repeat or so, and the median may stay where it was: then nothing is blamed.
    assert ended.code == 1 or (limit == "cpus=0.5" and ended.code == 3), ended
    assert ended.code == 3 or ended.json["causes"]["cause"] == "image"


@pytest.mark.campaign
@pytest.mark.parametrize("trial", range(1, 4))
def test_a_neighbour_of_both_images_is_neithers(images: Callable[..., str], trial: int) -> None:
    """It has the core that both are pinned to, all of the time."""
    name = f"{REPOSITORY}-neighbour"
    loop = ("sh", "-c", "while :; do :; done")
    run(
        "docker",
        "run",
        "--detach",
        "--rm",
        "--name",
        name,
        "--cpuset-cpus",
        "0",
        "--network",
        "none",
        BASE,
        *loop,
    )
    try:
        ended = ab(
            BASE,
            images("again", "LABEL again=1"),
            *QUICK,
            "--both",
            "cpuset=0",
            "--both",
            "command=python serve.py",
            "--json",
        )
    finally:
        run("docker", "rm", "--force", name)
    print(ended.out)
    assert ended.code in (0, 3), ended
    assert ended.json["verdict"] in ("equivalent", "unconfirmed", "inconclusive")


@pytest.mark.campaign  # a minute and a half; tests/unit/ab has settings and claims, and a slower image ends as here
def test_one_image_under_two_settings_is_compared_and_a_claim_checked(
    images: Callable[..., str], settings: str
) -> None:
    """Four times the work: the claim that it takes a fifth longer at most is refuted, on a busy machine too."""
    own = ("--both", "cpus=1", "--b", "cpus=0.9", "--b", "env.WORK_BYTES=32e6", "--expect", "+20%")
    ended = ab(BASE, "--both", settings, "--restarts", "6", "--runs", "8", *FAST, *own, "--json")
    assert ended.code == 1, ended
    result = ended.json
    assert result["a"]["image_id"] == result["b"]["image_id"]
    assert result["a"]["settings"] == {"cpus": "1"}
    assert result["b"]["settings"] == {"cpus": "0.9", "env.WORK_BYTES": "32e6"}
    assert "; B: cpus=0.9, WORK_BYTES=32e6" in result["sentence"]  # what other measures do may follow
    assert result["claim"]["state"] == "refuted"


def test_a_server_with_its_own_probe_is_asked_at_the_pace_of_an_experiment(
    images: Callable[..., str], begun: Callable[..., subprocess.Popen[str]]
) -> None:
    """It runs every 30 s at 1 % by its own settings: one start's 8 runs would take 4 minutes."""
    begin = time.monotonic()
    child = begun(BASE, images("again", "LABEL again=1"), *SHORT, "--both", "env.WORK_BYTES=4e6")
    until(child, "start 2 of ")
    assert time.monotonic() - begin < 60
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "older" not in out


@pytest.mark.parametrize(
    ("how", "why"),
    [("exit", "it ended with exit code 7: no licence for this host"), ("raise", "canary work fails: .*no such kernel")],
)  # fmt: skip
def test_a_side_that_fails_is_reported_in_one_line(
    images: Callable[..., str], settings: str, how: str, why: str
) -> None:
    failing = images(how, f"ENV WORK_FAILS={how}")
    ended = ab(BASE, failing, "--both", settings, *QUICK)
    assert (ended.code, ended.out) == (2, "")
    last = f"infercanary: B, {failing}: failed to start twice in a row: {why}"
    assert re.match(last, ended.err.splitlines()[-1])
    assert re.search(rf"B failed to start \({why}.*\); once more", ended.err)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((BASE, "infercanary-ab-test:none"), "image infercanary-ab-test:none is not on this machine and cannot"),
        ((BASE, "Not A Name"), "image Not A Name is not on this machine and cannot be pulled ("),
        ((BASE, BASE, "--both", "volume=no-such-volume:/x"), "volume no-such-volume: no such volume; make it "),
        ((BASE, BASE, "--both", "volume=/no/such/folder:/x"), f"A, {BASE}: failed to start twice in a row: Docker: "),
        ((BASE, BASE, "--canary", "play"), f"A, {BASE}: failed to start twice in a row: it has no canary `play`"),
    ],
)  # fmt: skip
def test_what_docker_does_not_have(images: Callable[..., str], arguments: tuple[str, ...], line: str) -> None:
    ended = ab(*arguments, *QUICK)
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.splitlines()[-1].startswith(f"infercanary: {line}"), ended.err
    assert "no-such-volume" not in run("docker", "volume", "ls", "--quiet").split()


def test_a_missing_image_is_pulled_and_the_time_of_each_step_shown(
    images: Callable[..., str], settings: str, registry: str, tmp_path: Path
) -> None:
    built = images("pulled", "RUN head -c 20000000 /dev/urandom > /tmp/filler")
    name = f"{registry}/{REPOSITORY}:pulled"
    run("docker", "tag", built, name)
    run("docker", "push", "--quiet", name, seconds=600)
    run("docker", "rmi", name, built)
    page = tmp_path / "report.html"
    try:
        ended = ab(name, BASE, "--both", settings, *QUICK, "--html", str(page))
    finally:
        run("docker", "rmi", "--force", name)
    assert ended.code in (0, 3), ended
    assert f"pulling {name}\n" in ended.err and f"pulling {BASE}" not in ended.err
    words = " ".join(ended.out.split())
    assert re.search(rf"A {name}, [0-9a-f]{{12}}, [\d.]+ [MG]B, ", words), ended.out
    took = r"[\d.]+ m?s( \(± [\d.]+ %\))?"
    steps = rf"pull {took} → not pulled start {took} → {took} first answer {took} → {took} load "
    assert re.search(steps, words), ended.out
    assert "<dt>pull</dt>" in page.read_text()


@pytest.mark.parametrize(
    ("registry", "name"),
    [("", "none:1"), ("users", "none:1"), ("", "127.0.0.1:1/none:1")],
    indirect=["registry"],
)
def test_a_pull_that_fails_ends_it_in_one_line_before_anything_is_started(
    images: Callable[..., str], registry: str, name: str
) -> None:
    name = name if "/" in name else f"{registry}/{name}"
    ended = ab(BASE, name, *QUICK)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].startswith(
        f"infercanary: image {name} is not on this machine and cannot be pulled ("
    ), ended.err
    assert "); build it, fix its name, log in (`docker login`), or " in ended.err
    assert "start 1 of " not in ended.err


def test_the_budget_is_kept(images: Callable[..., str], settings: str) -> None:
    begin = time.monotonic()
    ended = ab(BASE, BASE, "--both", settings, "--runs", "200", "--budget", "10", "--json")
    assert ended.code == 3
    assert time.monotonic() - begin < 60
    assert (ended.json["ended"], ended.json["verdict"], ended.json["canaries"]) == (
        "budget",
        "inconclusive",
        [],
    )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.campaign)]
)
def test_ctrl_c_cleans_up_and_prints_what_is_known(
    images: Callable[..., str],
    settings: str,
    begun: Callable[..., subprocess.Popen[str]],
    number: int,
    code: int,
) -> None:
    child = begun(BASE, BASE, "--both", settings, "--json")
    [volume] = volumes(containers())
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert (json.loads(out)["ended"], json.loads(out)["exit_code"]) == ("interrupted", code)
    assert containers() == []
    assert volume not in run("docker", "volume", "ls", "--quiet").split()
    assert "Traceback" not in err


def test_a_killed_experiment_leaves_nothing(
    images: Callable[..., str], settings: str, begun: Callable[..., subprocess.Popen[str]]
) -> None:
    child = begun(BASE, BASE, "--both", settings)
    [volume] = volumes(containers())
    child.kill()
    child.wait(10)
    eventually("its container is gone", 30, lambda: not containers())
    eventually(
        "its volume is gone", 10, lambda: volume not in run("docker", "volume", "ls", "--quiet").split()
    )
    eventually("its reaper is gone", 30, lambda: not processes())


def test_what_is_left_where_the_reaper_was_killed_too_goes_after_its_time(images: Callable[..., str]) -> None:
    label = ("--label", f"{LABEL}=1")
    left = run("docker", "run", "--detach", *label, "--network", "none", BASE, "sleep", "600").split()
    ended = ab(BASE, "infercanary-ab-test:none")
    assert ended.code == 2
    assert "removed 1 container(s) left by an earlier experiment" in ended.err
    assert not {id_[:12] for id_ in left} & set(containers())


def test_an_experiment_beside_this_one_is_left_alone(
    images: Callable[..., str], settings: str, begun: Callable[..., subprocess.Popen[str]]
) -> None:
    begun(BASE, BASE, "--both", settings, "--runs", "200")
    running = containers("status=running")
    assert ab(BASE, "infercanary-ab-test:none").code == 2
    assert containers("status=running") == running


def test_a_full_disk_costs_the_report_and_leaves_nothing(
    images: Callable[..., str], settings: str, tmp_path: Path, begun: Callable[..., subprocess.Popen[str]]
) -> None:
    """The answer is printed all the same."""
    full = tmp_path / "full"
    full.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small disk cannot be mounted here: that needs root")
    run("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(full))
    try:
        (full / "filler").write_bytes(b"x" * 12_288)
        environment = {**os.environ, "TMPDIR": str(full)}
        arguments = (BASE, BASE, "--both", settings, *QUICK)
        child = begun(*arguments, "--html", str(full / "report.html"), env=environment)
        until(child, "start 3 of ")  # one pair is there: an answer, though none to rely on
        child.send_signal(signal.SIGINT)
        answer, errors = child.communicate(timeout=60)
        assert child.returncode == 2
        assert answer.startswith("work: ")
        why = "cannot be written (No space left on device); name another place"
        assert errors.splitlines()[-1] == f"infercanary: --html {full / 'report.html'}: {why}"
        assert [path.name for path in full.iterdir()] == ["filler"]
    finally:
        run("umount", str(full))


def volumes(ids: list[str]) -> list[str]:
    """The anonymous volumes of containers."""
    [found] = [json.loads(run("docker", "inspect", "--format", "{{json .Mounts}}", id_)) for id_ in ids]
    return [mount["Name"] for mount in found]
