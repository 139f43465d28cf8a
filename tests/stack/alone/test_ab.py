"""`infercanary ab` with real containers: none may remain, however the experiment ends."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from harness import ROOT, build, compose, eventually, run

from tests.scenarios import cases

HERE = Path(__file__).parent / "ab"
REPOSITORY = "infercanary-ab-test"
BASE = f"{REPOSITORY}:base"
LABEL = "infercanary.ab"
SHORT = ("--restarts", "3", "--runs", "8", "--start-timeout", "60")
FAST = ("--both", "env.INFERCANARY_INTERVAL_SECONDS=0.1")  # an experiment uses half a second
QUICK = (*SHORT, *FAST)
LONG = ("--restarts", "6", "--runs", "8", *FAST)
SLOWER = "ENV WORK_BYTES=32e6"
OPEN = ("equivalent", "unconfirmed", "inconclusive")


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Return a function that builds an image from the base image and additional Dockerfile lines; remove all
    images at the end.
    """
    if not run("docker", "images", "--quiet", "infercanary-example:dev"):
        compose("build", "--quiet", "classify", seconds=900)
    context = tmp_path_factory.mktemp("ab")
    shutil.copytree(ROOT / "probe", context / "probe", ignore=shutil.ignore_patterns("__pycache__"))
    for path in HERE.iterdir():
        if path.is_file():
            shutil.copy(path, context)
    run("docker", "build", "--quiet", "--tag", BASE, str(context), seconds=300)

    def derived(tag, *lines):
        name = f"{REPOSITORY}:{tag}"
        build(name, "\n".join([f"FROM {BASE}", *lines, ""]))
        return name

    yield derived
    tags = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split()
    run("docker", "rmi", "--force", *tags)


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "probe.yaml"
    path.write_text('canaries: {work: {target: "work:Work"}}\n')
    return f"config={path}"


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Check after a test that experiments left no containers and processes, and never created a network."""
    yield
    eventually("no container of an experiment is left", 30, lambda: not containers())
    eventually("no process of an experiment is left", 30, lambda: not processes())
    assert LABEL not in run("docker", "network", "ls", "--format", "{{.Name}} {{.Labels}}")


def containers(*filters):
    chosen = [word for each in (f"label={LABEL}", *filters) for word in ("--filter", each)]
    return run("docker", "ps", "--all", "--quiet", *chosen).split()


def volumes():
    mounts = run("docker", "inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", *containers())
    return set(mounts.split())


def processes():
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "infercanary.ab" in line or "infercanary.command.cli ab" in line or "/dev/stdin" in line:
            found.append(line)
    return found


def command(*arguments):
    return [sys.executable, "-m", "infercanary", "ab", *arguments]


def ab(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=900, cwd=HERE)
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def begun():
    made = set()
    with ExitStack() as stack:

        def begin(*arguments):
            pipe = subprocess.PIPE
            child = stack.enter_context(
                subprocess.Popen(command(*arguments), stdout=pipe, stderr=pipe, text=True, cwd=HERE)
            )
            stack.callback(child.kill)
            eventually(
                "a container runs", 60, lambda: child.poll() is not None or containers("status=running")
            )
            assert child.poll() is None, child.communicate()
            made.update(volumes())
            return child

        yield begin
    left = lambda: made & set(run("docker", "volume", "ls", "--quiet").split())  # noqa: E731
    eventually("the container's volume is removed", 30, lambda: made and not left())


@pytest.mark.parametrize("trial", [1, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(2, 7))])
def test_the_same_image_is_not_called_slower(images, settings, trial):
    ended = ab(BASE, BASE, "--both", settings, *QUICK, "--json", "--both", "cpus=1", "--both", "memory=512m")
    assert ended.code in (0, 3), ended
    result = ended.json
    assert result["verdict"] in OPEN
    assert result["exit_code"] == ended.code
    image_id = run("docker", "inspect", "--format", "{{.Id}}", BASE).strip()
    assert result["a"]["image_id"] == result["b"]["image_id"] == image_id
    assert result["a"]["starts"] == result["b"]["starts"] >= 3
    assert result["a"]["image_bytes"] > 1e6
    assert {"start", "first_answer", "load", "first_run", "time_to_steady"} == set(result["a"]["cold_start"])
    # This is the order of the starts, not of the pairs, because a contended pair does not count.
    sides = "".join(re.findall(r"start \d+ of up to \d+: ([AB])\b", ended.err))
    assert len(sides) >= 6 and sides.startswith("ABBAAB"), sides
    assert result["causes"] is None or not result["causes"]["changes"]


def test_a_slower_image_ends_with_1_and_says_why(images, settings, tmp_path):
    slower, page = images("slower", SLOWER), tmp_path / "report.html"
    ended = ab(BASE, slower, "--both", settings, *QUICK, "--html", str(page), "--both", "cpus=1")
    assert ended.code == 1, ended
    assert ended.out.startswith("work: regressed ")
    assert "work_bytes 8000000 → 32000000" in " ".join(ended.out.split())
    assert '<article class="regressed">' in page.read_text()


@pytest.mark.campaign
@pytest.mark.parametrize("limit", ["cpuset=0", "cpus=0.5"])
@pytest.mark.parametrize("trial", range(1, 4))
def test_a_busy_loop_in_the_new_image_is_the_images(images, limit, trial):
    busy = images("busy", 'CMD ["sh", "-c", "(while :; do :; done) & exec python serve.py"]')
    ended = ab(BASE, busy, *LONG, "--both", limit, "--json")
    print(ended.out)
    # A quota throttles about every other repeat, and the median may stay equal. The verdict then names no
    # cause.
    assert ended.code == 1 or (limit == "cpus=0.5" and ended.code == 3), ended
    assert ended.code == 3 or ended.json["causes"]["cause"] == "image"


@pytest.mark.campaign
@cases(range(1, 4))
def test_a_neighbour_of_both_images_is_neithers(trial, images):
    name = f"{REPOSITORY}-neighbour"
    options = ("--name", name, "--cpuset-cpus", "0", "--network", "none")
    run("docker", "run", "--detach", "--rm", *options, BASE, "sh", "-c", "while :; do :; done")
    try:
        again, pinned = images("again", "LABEL again=1"), ("--both", "cpuset=0")
        ended = ab(BASE, again, *QUICK, *pinned, "--both", "command=python serve.py", "--json")
    finally:
        run("docker", "rm", "--force", name)
    print(ended.out)
    assert ended.code in (0, 3), ended
    assert ended.json["verdict"] in OPEN


@pytest.mark.campaign
def test_a_server_with_its_own_probe_is_asked_at_the_pace_of_an_experiment(images, begun):
    """By its own settings, the server would run the canary every 30 s at 1 %: the 8 runs of a start would take 4
    minutes.
    """
    begin = time.monotonic()
    child = begun(BASE, images("again", "LABEL again=1"), *SHORT, "--both", "env.WORK_BYTES=4e6")
    # the experiment ended before its second start
    assert any("start 2 of " in line for line in child.stderr)
    assert time.monotonic() - begin < 60


@pytest.mark.campaign  # tests/integration/ab tests a side that dies, without Docker
@cases([
        ((BASE, "exit"), r"B, \S+: failed to start twice in a row: the container ended with exit code 7: no licence"),
        ((BASE, f"{REPOSITORY}:none"), r"image \S+:none is not on this machine and cannot be pulled \("),
        ((BASE, BASE, "--both", "volume=no-such-volume:/x"), "volume no-such-volume: no such volume; create the "),
        ((BASE, BASE, "--both", "volume=/no/such:/x"), r"A, \S+: failed to start twice in a row: Docker: "),
        ((BASE, BASE, "--canary", "play"), r"A, \S+: failed to start twice in a row: the probe has no canary `play`"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_is_one_line(arguments, line, images, settings):
    failing = images("exit", "ENV WORK_FAILS=exit")
    ended = ab(*[failing if word == "exit" else word for word in arguments], "--both", settings, *QUICK)
    assert (ended.code, ended.out) == (2, ""), ended
    assert re.match(f"infercanary: {line}", ended.err.splitlines()[-1]), ended.err
    assert "no-such-volume" not in run("docker", "volume", "ls", "--quiet").split()


@pytest.mark.campaign
def test_a_missing_image_is_pulled_and_the_time_of_each_step_shown(images, settings, registry):
    built = images("pulled", "RUN head -c 20000000 /dev/urandom > /tmp/filler")
    name = f"{registry}/{REPOSITORY}:pulled"
    run("docker", "tag", built, name)
    run("docker", "push", "--quiet", name, seconds=600)
    run("docker", "rmi", name, built)
    try:
        ended = ab(name, BASE, "--both", settings, *QUICK)
    finally:
        run("docker", "rmi", "--force", name)
    assert ended.code in (0, 3), ended
    assert f"pulling {name}\n" in ended.err
    assert f"pulling {BASE}" not in ended.err
    took = r"[\d.]+ m?s( \(± [\d.]+ %\))?"
    steps = rf"pull {took} → not pulled start {took} → {took} first answer {took} → {took} load "
    assert re.search(steps, " ".join(ended.out.split())), ended.out


@cases([(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.campaign)])
def test_ctrl_c_cleans_up_and_prints_what_is_known(number, code, images, settings, begun):
    child = begun(BASE, BASE, "--both", settings, "--json")
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert (json.loads(out)["ended"], json.loads(out)["exit_code"]) == ("interrupted", code)
    assert "Traceback" not in err


def test_a_killed_experiment_leaves_nothing_and_another_one_only_what_is_not_its_own(images, settings, begun):
    """If the reaper was killed as well, the next experiment removes its leftovers, but not those of running
    experiments.
    """
    child = begun(BASE, BASE, "--both", settings)
    running = containers("status=running")
    lost = run(
        "docker", "run", "--detach", "--label", f"{LABEL}=1", "--network", "none", BASE, "sleep", "600"
    )
    ended = ab(BASE, f"{REPOSITORY}:none")
    assert ended.code == 2
    assert "removed 1 container(s) " in ended.err
    assert containers("status=running") == running
    assert lost[:12] not in running
    child.kill()
    child.wait(10)
