"""The demo with a real server and a real exporter, as a new user runs it."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.programs import ended
from tests.scenarios import cases

pytestmark = pytest.mark.takes(100)


@contextmanager
def demo(temporary, *arguments, **environment):
    """Run `infercanary demo`, and yield its process; kill the process and its children if a test fails."""
    child = subprocess.Popen(
        [sys.executable, "-m", "infercanary", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "300",  # a wide terminal, so that lines of progress are not wrapped
            **environment,
        },
    )
    family = psutil.Process(child.pid)
    try:
        yield child
    finally:
        if child.poll() is None:
            for process in [*family.children(recursive=True), family]:
                process.kill()
        child.stdout.close()
        child.wait(10)


def read_until(child, pattern):
    """Return the first line that matches; fail if the output ends earlier."""
    seen = []
    for line in child.stdout:
        seen.append(line)
        if match := re.search(pattern, line):
            return match
    pytest.fail(f"no line matches {pattern!r} in:\n{''.join(seen)}")


@pytest.mark.quiet
@cases(
    [
        pytest.param({"INFERCANARY_INTERVAL_SECONDS": "0.3"}, id="more often"),
        pytest.param({}, id="as it is", marks=pytest.mark.campaign),
    ],
)
def test_it_ends_in_a_verdict_on_the_upgrade(environment, tmp_path):
    """Other load on the machine may make contention the named cause of the verdict. The exit code then says so."""
    with demo(tmp_path, **environment) as child:
        output, _ = child.communicate(timeout=300)
    steps = [
        "baseline: starting",
        "upgrade: stopping",
        "upgrade: starting",
        "\nregressed ",
        "he expected verdict",
    ]
    places = [output.find(step) for step in steps]
    assert places == sorted(places) and places[0] == 0, output
    assert re.search(r"\n +baseline +1\d +\S+ ms.*\n +upgrade +\d+ +\S+ ms", output), output
    assert re.search(r"\nregressed .*torch_cpu_capability \w+ → DEFAULT", output), output
    assert child.returncode == (0 if re.search(r"\nregressed [^:]+: image;", output) else 1), output
    assert list(tmp_path.iterdir()) == []


@cases([signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.campaign)])
def test_a_signal_leaves_nothing_behind(number, tmp_path):
    # the proxy of a company, which the demo must not use
    with demo(tmp_path, http_proxy="http://127.0.0.1:9") as child:
        read_until(child, "baseline: run")
        children = psutil.Process(child.pid).children(recursive=True)
        assert len(children) == 2
        child.send_signal(number)
        output, _ = child.communicate(timeout=30)
    assert (child.returncode, "Stopped before the verdict." in output) == (130, True), output
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_cannot_start_is_named_in_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for this test')\n")
    command = (sys.executable, "-m", "infercanary", "demo")
    [line] = ended(*command, code=2, env={"PYTHONPATH": str(tmp_path)}).stderr.splitlines()
    assert line.startswith("infercanary: the server ended with code 1: ImportError: no torch for this test")


def test_children_of_its_children_end_too(tmp_path):
    script = (
        "import time\n"
        "from infercanary.demo.processes import Processes\n"
        "with Processes() as processes:\n"
        "    processes.start('parent', ['sh', '-c', \"trap '' TERM; sleep 600 & echo $! > new; mv new pid; wait\"])\n"
        "    while not (processes.folder / 'pid').exists(): time.sleep(0.05)\n"
        "    print((processes.folder / 'pid').read_text())\n"
    )
    done = ended(sys.executable, "-c", script, env={"TMPDIR": str(tmp_path)})
    assert done.stderr == ""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(5)
    assert list(tmp_path.iterdir()) == []
