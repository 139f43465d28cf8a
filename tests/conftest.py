"""Test order, parallel processes (pytest-xdist), memory limits, and tests that need an idle machine:
docs/testing.md.
"""

import fcntl
import re
import resource
import signal
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import PurePosixPath

import pytest
from hypothesis import settings

from infercanary.probe.measures import peak, reset_peak, resident
from infercanary.probe.memory import readable

# No test has a deadline: on a shared machine, a slow moment is not a fault.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

MOST_MEMORY = 1 << 30
"""Largest memory of a test in bytes. Tests also run on small machines, and some machines never refuse an allocation."""
# CUDA's libraries and their profiler use 1 to 1.8 GiB. PyPI's torch loads them even without a GPU.
MOST_BESIDE_CUDA = 3 << 30

# Command that runs a skipped test, by a pattern of the reason; the first match counts.
COMMANDS = {
    r"CUDA|NVIDIA|GPU": "make gpu, on a machine with an NVIDIA GPU",
    r"PostgreSQL|C compiler|C\+\+|openssl|OpenSSL|faketime|[Cc]hromium|assembler": (
        "sudo apt-get install postgresql g++ openssl libfaketime chromium llvm, then make test"
    ),
    r"[Pp]rometheus|promtool": "sudo .ci/prometheus, then make test",
    r"helm": "sudo .ci/helm, then make test",
    r"npm|Node": "npm ci --prefix grafana/check, then make test",
    r"root|rights|mount|cgroup|control group": 'sudo make test ARGS="-m root"',
    r"Docker|docker|registry": "sudo .ci/docker, then make test-stack",
}

# A session has one Compose stack and one cluster. The tests of each run in one process in this order: first
# the tests that only read, last the tests that restart or replace containers. Other files in the cluster's
# folder need no cluster.
SHARED_STACK = PurePosixPath("tests/stack")
SHARED_CLUSTER = PurePosixPath("tests/kubernetes")
ORDER = {
    SHARED_STACK: (
        "test_compose",
        "test_ghosts",
        "test_dashboards",
        "test_recovery",
        "test_ways",
        "test_fleet",
    ),
    SHARED_CLUSTER: (
        "test_templates",
        "test_install",
        "test_verdicts",
        "test_kubelet",
        "test_removal",
        "test_history",
        "test_rollouts",
    ),
}


def _path(nodeid):
    return PurePosixPath(nodeid.partition("::")[0])


def _is_shared(path):
    return path.parent == SHARED_STACK or path.stem in ORDER.get(path.parent, ())


def _scopes(nodeids):
    """Return the scope of each test. Tests of one scope run one after another in one process.

    A shared stack or cluster is one scope, and so is a file. The quiet tests of a file with other tests are a
    separate scope, because quiet tests run last.
    """
    found, parts, before = {}, Counter[PurePosixPath](), None
    for nodeid in nodeids:
        path = _path(nodeid)
        parts[path] += path != before
        before = path
        found[nodeid] = str(path.parent) if _is_shared(path) else f"{path} {parts[path]}"
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Import the test files in a different order in each process.

    pytest takes longer to rewrite the asserts of a file than to import it, and a process reads the files that
    other processes have rewritten.
    """
    process = getattr(session.config, "workerinput", None)
    if process is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted((session.config.rootpath / "tests").rglob("test_*.py"))
    first = len(files) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
    for path in files[first:] + files[:first]:
        try:
            _ = pytest.Module.from_parent(session, path=path).obj
        except (Exception, pytest.skip.Exception):
            # pytest reports this error when it collects the file. The half-imported module must leave
            # `sys.modules`, because later imports would use it as if it were complete.
            for name, module in [*sys.modules.items()]:
                if getattr(module, "__file__", None) == str(path):
                    del sys.modules[name]


def pytest_collection_modifyitems(items):
    """Sort the tests: shared stack first, then the longest files, and quiet tests last, because they wait for
    all others.
    """
    seconds = {}
    for item in items:
        if mark := item.get_closest_marker("takes"):
            seconds[_path(item.nodeid)] = mark.args[0]

    def key(item):
        path = _path(item.nodeid)
        if _is_shared(path):
            return False, False, ORDER[path.parent].index(path.stem)
        return True, item.get_closest_marker("quiet") is not None, -seconds.get(path, 0.0)

    items.sort(key=key)


@contextmanager
def _lock(item, name, kind):
    with (item.config.cache.mkdir("quiet") / name).open("w") as file:
        fcntl.flock(file, kind)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a quiet test alone: no other process starts a test until the quiet test has ended."""
    if item.get_closest_marker("quiet"):
        with _lock(item, "door", fcntl.LOCK_EX), _lock(item, "room", fcntl.LOCK_EX):
            return (yield)
    with _lock(item, "door", fcntl.LOCK_SH):
        pass
    with _lock(item, "room", fcntl.LOCK_SH):
        return (yield)


def pytest_configure():
    """Restore SIGINT: a shell ignores it for background commands, and their child processes inherit this.

    SIGTERM, which `timeout` sends, ends a run like Ctrl-C, so that fixtures stop their processes.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that takes too much memory: growth of this process, or peak of an ended child process."""
    with suppress(OSError):  # if the kernel cannot reset the peak, the peak includes earlier tests
        reset_peak()
    before, children = resident(), _children()
    yield
    most = max(peak() - before, found if (found := _children()) > children else 0)
    is_large = item.get_closest_marker("gpu") or item.get_closest_marker("large")
    has_cuda = "torch" in sys.modules and find_spec("nvidia") is not None
    allowed = MOST_BESIDE_CUDA if is_large or has_cuda else MOST_MEMORY
    assert most <= allowed, f"took {readable(most)}, but the limit of a test is {readable(allowed)}"


def _children():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        skipped = Counter(_command(str(report.longrepr)) for report in reporter.stats.get("skipped", ()))
        for command, tests in skipped.most_common():
            if command:
                reporter.write_line(f"{tests} skipped: {command}")
    return result


def _command(reason):
    return next((command for names, command in COMMANDS.items() if re.search(names, reason)), "")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem, report):
    """End the run if a worker was killed: xdist would give the test to another worker, and could then wait for ever."""
    report.node.config.hook.pytest_runtest_logreport(report=report)
    pytest.exit(f"a worker ended while it ran {crashitem}", returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run scopes in parallel.

    xdist 3.8 has its own groups, but adds them to the names of tests in a form that pytest 9.2 does not read.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        @cached_property
        def _scopes(self):
            return _scopes(self.collection)

        def _split_scope(self, nodeid):
            return self._scopes[nodeid]

    config.option.loadscopereorder = False
    return Scheduling(config, log)
