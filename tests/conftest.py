"""Order, parallelism and memory limits of the tests (pytest-xdist), and tests that need an idle machine.

See docs/testing.md.
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

# Never a timed test: machines are shared, and a slow moment is no mistake.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

MOST_MEMORY = 1 << 30
"""Bytes that a test may take: suites run on small machines, some of which never refuse an allocation."""
# CUDA's libraries, which PyPI's torch loads without a GPU too, and what its profiler keeps of them, are 1 to 1.8 GiB.
MOST_BESIDE_CUDA = 3 << 30

# What makes the skipped tests run, by what their reasons name: the first that fits.
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

# One Compose stack a session, one cluster: the tests of each run in one process, in this order. What only reads goes
# first, what restarts and replaces containers after it. Other files beside those of the cluster need none.
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
    """Tests of one scope run in one process, one after the other: those of what is shared, and those of a file.

    Of a file that has both kinds the quiet tests are a scope of their own: they stand at the end of the order.
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
    """Each process begins with other files: pytest's changes to a file's asserts take longer than its import, and what
    one process has compiled the others read."""
    process = getattr(session.config, "workerinput", None)
    if process is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted((session.config.rootpath / "tests").rglob("test_*.py"))
    first = len(files) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
    for path in files[first:] + files[:first]:
        try:
            _ = pytest.Module.from_parent(session, path=path).obj
        except (Exception, pytest.skip.Exception):
            # It is reported when it is collected. By importlib half of it stays, and would be taken for the whole.
            for name, module in [*sys.modules.items()]:
                if getattr(module, "__file__", None) == str(path):
                    del sys.modules[name]


def pytest_collection_modifyitems(items):
    """The shared stack first, then the longest files; quiet tests last, for these wait for all others."""
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
    """A quiet test runs while no other does, in whichever process; no other starts while one waits."""
    if item.get_closest_marker("quiet"):
        with _lock(item, "door", fcntl.LOCK_EX), _lock(item, "room", fcntl.LOCK_EX):
            return (yield)
    with _lock(item, "door", fcntl.LOCK_SH):
        pass
    with _lock(item, "room", fcntl.LOCK_SH):
        return (yield)


def pytest_configure():
    """A shell ignores SIGINT for what it starts in the background, and so would all processes that tests start.

    SIGTERM, as `timeout` sends it, ends a run as Ctrl-C does: what the tests started is stopped.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test that takes more than 1 GiB fails: of its process above what that had, or a child's that it waited for."""
    with suppress(OSError):  # a kernel that cannot: the peak is then that of earlier tests too
        reset_peak()
    before, children = resident(), _children()
    yield
    most = max(peak() - before, found if (found := _children()) > children else 0)
    has_cuda = item.get_closest_marker("gpu") or ("torch" in sys.modules and find_spec("nvidia") is not None)
    allowed = MOST_BESIDE_CUDA if has_cuda else MOST_MEMORY
    assert most <= allowed, f"it took {readable(most)}, and a test may take {readable(allowed)}"


def _children():
    """The most bytes that any child had."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """After all else: which commands make the skipped tests run."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        skipped = Counter(_command(str(report.longrepr)) for report in reporter.stats.get("skipped", ()))
        for command, tests in skipped.most_common():
            if command:
                reporter.write_line(f"{tests} skipped: {command}")
    return result


def _command(reason):
    """The command that makes a skipped test run; empty where there is none."""
    return next((command for names, command in COMMANDS.items() if re.search(names, reason)), "")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem, report):
    """A worker that was killed ends the run: xdist gives its test to the next one, and may then wait for ever."""
    report.node.config.hook.pytest_runtest_logreport(report=report)
    pytest.exit(f"a worker ended while it ran {crashitem}", returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Scopes side by side.

    Not xdist's own groups: 3.8 writes them into a name that pytest 9.2 does not read.
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
