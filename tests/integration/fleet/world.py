"""Simulated probes on real sockets, and real exporters in separate processes with a shared database."""

import threading
import time
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from urllib.parse import parse_qs, urlsplit

import numpy as np
from answers import answering
from postgres import PASSWORD

from infercanary.contract.report import SCHEMA_VERSION, Report, Run, encode
from infercanary.store.store import open_store
from tests.integration.exporter.processes import KEY, ExporterProcess, until

SERVICE = KEY.name
_EVERY = 0.05  # seconds between two runs; 10 s by the probe's clock
_BEGAN = 1_790_000_000.0
# For each write of a finding, in order: host of the exporter, and fencing token of the service's lease at
# that time.
AUDIT = """
CREATE TABLE written (number bigserial PRIMARY KEY, host text, fence bigint);
CREATE FUNCTION note() RETURNS trigger AS $$ BEGIN
  INSERT INTO written (host, fence) SELECT current_setting('application_name'), fence FROM lease
    WHERE namespace = NEW.namespace AND service = NEW.service;
  RETURN NEW; END $$ LANGUAGE plpgsql;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON finding FOR EACH ROW EXECUTE FUNCTION note();
"""


class Probe:
    """A simulated probe of a container. It keeps all of its runs, including those of earlier starts.

    Args:
        name: Name of the container.
        began: Unix time of the first start.
    """

    def __init__(self, name, began=_BEGAN):
        self.name = name
        self._began_at = began
        self._rng = np.random.default_rng(sum(map(ord, name)))
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._runs = []
        self._boots = 0
        self._asked = 0
        self.stopped = False
        self.url = ""
        """URL of the probe; set when it is served."""
        self.reported = set()
        """Starts that an exporter polled while they ran."""
        self.upgrade(0.02, "1")

    def upgrade(self, seconds, torch):
        with self._lock:
            self._boots += 1
            self._first = len(self._runs)
            self._level, self._environment = seconds, {"torch": torch}
            self._started_at = self._began_at + 10 * self._first

    @property
    def boot_id(self):
        return f"{self.name}-{self._boots}"

    def made(self):
        with self._lock:
            while not self.stopped and len(self._runs) < (time.monotonic() - self._began) / _EVERY:
                number = len(self._runs)
                latency = self._level * float(np.exp(self._rng.normal(0, 0.003)))
                control = 0.001 * float(np.exp(self._rng.normal(0, 0.003)))
                at = self._began_at + 1 + 10 * number
                self._runs.append(
                    Run(sequence=number - self._first, canary="c", scheduled_at=at, started_at=at, outcome="ok",
                        latencies=(latency,) * 5, boot_id=self.boot_id, controls={"cpu_spin": control})
                )  # fmt: skip
            return [*self._runs]

    @property
    def is_collected(self):
        return self.stopped and self._asked == len(self.made())

    def report(self, since):
        runs = self.made()
        self._asked = int(since or 0)
        self.reported.add(self.boot_id)
        found = Report(
            SCHEMA_VERSION, self.boot_id, self._started_at, str(len(runs)), 0, (), self._environment,
            tuple(runs[int(since or 0) :]),
        )  # fmt: skip
        return encode(found)


@contextmanager
def served(probe):
    def answer(path, _body):
        return 200, probe.report(parse_qs(urlsplit(path).query).get("since", [""])[0])

    with answering(answer) as probe.url:
        yield probe.url


class Exporter(ExporterProcess):
    """The exporter of one host, which a test may kill and restart. The database records the host of each write."""

    def __init__(self, folder, host, store, probes, environment=(), poll_seconds=0.2):
        self.host = host
        if "?" in store:
            store = f"{store}&application_name={host}"
        super().__init__(folder / host, probes, {"NODE_NAME": host, **dict(environment)}, store, poll_seconds)


def location(postgres, url, folder, lease_seconds=20.0):
    (folder / "password").write_text(PASSWORD)
    return (
        f"postgresql://postgres@127.0.0.1:{postgres.port}/{urlsplit(url).path[1:]}"
        f"?password_file={folder / 'password'}&lease_seconds={lease_seconds}"
    )


def audited(postgres):
    """Make a database with the store's tables and :data:`AUDIT`, and return its URL."""
    url = postgres.database()
    with closing(open_store(url)) as store:
        store.canaries()
    postgres.sql(AUDIT, url)
    return url


def made(probes):
    sequences = defaultdict[str, list[int]](list)
    for run in chain.from_iterable(probe.made() for probe in probes):
        sequences[run.boot_id].append(run.sequence)
    return {**sequences}


@contextmanager
def fleet(folder, store, hosts, replicas, began=_BEGAN, environments=(), poll_seconds=0.2):
    """Run replicas of one service, spread over hosts, each host with an exporter.

    Args:
        folder: Folder for settings and logs.
        store: One store for all exporters, or one for each.
        hosts: Number of hosts.
        replicas: Number of replicas on all hosts.
        began: Unix time of each replica's first start.
        environments: Additional variables of each exporter, or empty.
        poll_seconds: Interval of polls.

    Yields:
        Probes and exporters.
    """
    stores = [store] * hosts if isinstance(store, str) else store
    with ExitStack() as stack:
        probes = [Probe(f"c-{number}", began) for number in range(replicas)]
        urls = [stack.enter_context(served(probe)) for probe in probes]
        exporters = []
        for number, (one, environment) in enumerate(zip(stores, environments or [{}] * hosts, strict=True)):
            own = {
                f"c-{i // hosts}": urls[i] for i in range(number, replicas, hosts)
            }  # the same names on each host
            exporters.append(Exporter(folder, f"h-{number}", one, own, environment, poll_seconds))
            stack.callback(exporters[-1].kill)
            exporters[-1].start()
        yield probes, exporters


def publishers(exporters):
    return [one.host for one in exporters if one.values("infercanary_verdict")]


def one_owner_at_a_time(postgres, url):
    """Check that the holder of the lease made each write of a finding since :data:`AUDIT`."""
    writes = written(postgres, url)
    fences = [fence for _, fence in writes]
    assert fences and fences == sorted(fences), (
        "a write with an older lease came after one with a newer lease"
    )
    assert len({*writes}) == len({*fences}), "a lease has more than one holder"


def written(postgres, url):
    rows = postgres.sql("SELECT host, fence FROM written ORDER BY number", url).splitlines()
    return [(host, int(fence)) for host, fence in (row.split("|") for row in rows)]


eventually = until
