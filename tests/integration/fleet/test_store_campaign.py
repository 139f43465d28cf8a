"""Requirements of the store, one row for each trouble: real exporters, probes that keep all runs, a file or
PostgreSQL.

The store has each run exactly once by start and sequence, one exporter publishes the verdict, and no exporter
writes a finding with a lost lease. Other troubles have their own tests, which `make campaign ARGS="-k store"`
runs as well: test_killed.py and test_lost.py (kill -9), test_disk.py (power failure, full disk at any write),
test_clock.py (a file and the host's clock). tests/unit/store and tests/integration/exporter/test_store.py
test a locked file, a newer schema, a removed file, and broken connections.
"""

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager
from operator import gt
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from postgres import Postgres, running
from set_clock import Clock, needs_faketime
from slow_network import Proxy
from small_disk import fill, mounted

from infercanary.store.store import open_store
from tests.integration.exporter.processes import KEY
from tests.integration.fleet.world import (
    Exporter,
    Probe,
    audited,
    eventually,
    fleet,
    location,
    made,
    one_owner_at_a_time,
    publishers,
)
from tests.scenarios import cases

pytestmark = [pytest.mark.campaign, pytest.mark.store]
LEASE_SECONDS = 4.0
DAY = 86_400


class Scene(NamedTuple):
    probes: list[Probe]
    exporters: list[Exporter]
    location: str
    """Location of the store for the test's own reads."""
    clocks: list[Clock]
    """Clocks of the exporters, or one clock of PostgreSQL; empty if no clock is set."""
    networks: list[Proxy]
    """Proxies between each exporter and PostgreSQL; empty with a file."""
    server: Postgres | None
    rng: random.Random

    @property
    def postgres(self):
        return self.server

    @property
    def holder(self):
        eventually(lambda: len(publishers(self.exporters)) == 1)
        return next(filter(publishes, self.exporters))

    def is_up(self, up, *exporters):
        """Wait until these exporters, or all, report the store as up or down."""
        several = exporters or self.exporters
        eventually(lambda: all(one.values("infercanary_store_up").get("") == float(up) for one in several))

    def goes_on(self):
        before = [*map(stored_by, self.exporters)]
        eventually(lambda: all(map(gt, map(stored_by, self.exporters), before)))

    def says(self, text):
        eventually(lambda: all(text in one.log for one in self.exporters))


def stored_by(exporter):
    return exporter.values("infercanary_stored_runs_total").get("", 0.0)


# Troubles --------------------------------------------------------------------------------------------------------


def a_full_disk(scene):
    disk = Path(scene.location).parent if scene.server is None else scene.postgres.folder / "small"
    ballast = fill(disk)
    scene.is_up(False)
    scene.says("disk is full")
    ballast.unlink()


def probes_that_restart(scene):
    for _ in range(3):
        waiting = {*range(len(scene.probes))}
        while waiting:
            # An exporter must poll each start while it runs. Otherwise the start's image is unknown, and its
            # runs are not stored.
            seen = [one for one in waiting if scene.probes[one].boot_id in scene.probes[one].reported]
            for one in scene.rng.sample(seen, min(2, len(seen))):
                scene.probes[one].upgrade(0.03, "2")
                waiting.remove(one)


def tables_locked(scene):
    """Lock each table until an exporter logs an error, or for longer than a statement waits for a lock."""
    tables = scene.postgres.sql(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'written'",
        scene.location,
    ).split()
    complained = set()
    for table in [*tables, ", ".join(tables)]:
        with psycopg.connect(scene.location) as database:
            database.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            while time.monotonic() < began + 15:
                if any(one.values("infercanary_store_up").get("") == 0.0 for one in scene.exporters):
                    complained.add(table)
                    break
                time.sleep(0.2)
        scene.goes_on()
    assert {"sample", "series", "lease", ", ".join(tables)} <= complained, complained
    scene.says("waited too long for a lock")


def partitioned(scene):
    holder = scene.holder
    others = [one for one in scene.exporters if one is not holder]
    network = scene.networks[scene.exporters.index(holder)]
    network.hold_back(True)
    eventually(lambda: publishers(others))
    scene.is_up(False, holder)
    network.hold_back(False)
    eventually(lambda: not publishers([holder]))
    assert publishers(others)


def postgres_stopped(scene):
    scene.postgres.signal_all(signal.SIGSTOP)
    scene.is_up(False)
    scene.postgres.signal_all(signal.SIGCONT)


def slow_packets(scene):
    for network in scene.networks:
        network.delay_seconds = 0.4
    for _ in range(2):
        scene.goes_on()
    assert len(publishers(scene.exporters)) == 1
    for network in scene.networks:
        network.delay_seconds = 0.0


def dies(holder, scene):
    """Kill the holder of the lease, and start it again after another exporter has taken over."""
    holder.kill()
    eventually(lambda: publishers(scene.exporters))
    holder.start()
    scene.is_up(True)


def exporters_clocks_set(scene):
    """Set one exporter's clock a day forward and another's a day back. If one exporter dies, the other takes over."""
    first, second = scene.clocks
    for days in (1, -2):
        first.move(days * DAY)
        second.move(-days * DAY)
        scene.goes_on()
        for _ in range(2):
            dies(scene.holder, scene)


def postgres_clock_set(scene):
    clock = scene.clocks[0]
    for days in (1, -1, -1):
        before = float(scene.postgres.sql("SELECT extract(epoch FROM now())"))
        clock.move(days * DAY)
        moved = float(scene.postgres.sql("SELECT extract(epoch FROM now())")) - before
        assert abs(moved - days * DAY) < DAY / 2
        for _ in range(2):
            scene.goes_on()
        dies(scene.holder, scene)


class Row(NamedTuple):
    trouble: Callable[[Scene], None]
    kinds: tuple[str, ...] = ("postgres",)
    replicas: int = 4
    disk: int = 0
    """Size in MiB of a separate disk for the store, to fill it; 0 for none."""
    clock: str = ""
    """Owner of the set clocks: "exporters" or "server"."""
    parts: bool = False
    """True if the holder of a lease cannot reach the database for longer than the lease lasts. It then still shows its
    findings (docs/fleet.md), beside the exporter that takes over.
    """
    poll_seconds: float = 0.2


ROWS = (
    Row(a_full_disk, ("file", "postgres"), disk=24, parts=True),
    Row(probes_that_restart, ("file", "postgres"), replicas=20),
    Row(tables_locked, parts=True),
    Row(partitioned, parts=True),
    Row(postgres_stopped, parts=True),
    Row(slow_packets, poll_seconds=10.0),
    Row(exporters_clocks_set, clock="exporters"),
    Row(postgres_clock_set, clock="server", parts=True),
)


@contextmanager
def begun(row, kind, folder):
    """Run the scene before the trouble: an upgrade was judged, and the probes keep running."""
    with ExitStack() as stack:
        hosts = 1 if kind == "file" else 2
        clocks, server, networks = [], None, []
        if row.clock:
            shared = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shared.chmod(0o755)  # PostgreSQL runs as another user
            clocks = [Clock(shared / str(number)) for number in range(hosts)]
        if kind == "file":
            place = folder if not row.disk else stack.enter_context(mounted(folder / "disk", row.disk))
            at = str(place / "store.db")
            stores = [at]
        else:
            server = stack.enter_context(running(clocks[0].environment if row.clock == "server" else {}))
            if row.disk:
                stack.enter_context(mounted(server.folder / "small", row.disk, "postgres"))
                stack.callback(server.stop, signal.SIGKILL)
            at = audited(server)
            if row.disk:
                server.sql(f"CREATE TABLESPACE small LOCATION '{server.folder / 'small'}'")
                for kind_of in ("TABLE", "INDEX"):
                    server.sql(f"ALTER {kind_of} ALL IN TABLESPACE pg_default SET TABLESPACE small", at)
            networks = [stack.enter_context(closing(Proxy(server.port))) for _ in range(hosts)]
            named = location(server, at, folder, LEASE_SECONDS)
            stores = [named.replace(f":{server.port}/", f":{network.port}/") for network in networks]
        environments = [clock.environment for clock in clocks] if row.clock == "exporters" else []
        probes, exporters = stack.enter_context(
            fleet(
                folder, stores, hosts, row.replicas, environments=environments, poll_seconds=row.poll_seconds
            )
        )
        scene = Scene(probes, exporters, at, clocks, networks, server, random.Random(11))
        eventually(lambda: len(publishers(exporters)) == 1)
        eventually(lambda: all(probe.boot_id in probe.reported for probe in probes))
        scene.goes_on()
        for probe in probes:
            probe.upgrade(0.03, "2")
        eventually(lambda: all(probe.boot_id in probe.reported for probe in probes))
        yield scene


@contextmanager
def watched(scene):
    """Record the monotonic times at which two exporters published at the same moment."""
    twice = []
    ended = threading.Event()

    def watch():
        while not ended.wait(0.1):
            first, *others = scene.exporters
            # If an exporter publishes both before and after another one does, the two publish at the same
            # moment.
            if others and all(map(publishes, (first, *others, first))):
                twice.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield twice
    finally:
        ended.set()
        thread.join()


def stored(store):
    """Return the sequence numbers of the runs by start, and the number of runs that the store counted by start."""
    found = store.generations(KEY, "c")
    runs = {start.boot_id: [run.sequence for run in runs] for start, runs in found}
    return runs, {boot: count for (_, boot), count in store.taken(KEY, "c").items()}


def publishes(exporter):
    return bool(exporter.values("infercanary_verdict"))


def regressed(exporter):
    shown = exporter.values("infercanary_verdict").items()
    return any(
        value and 'measure="latency"' in labels and 'verdict="regressed"' in labels for labels, value in shown
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a row mounts a small disk, which needs root")
@needs_faketime
@cases(
    [pytest.param(row, kind, id=f"{row.trouble.__name__}-{kind}") for row in ROWS for kind in row.kinds],
)
def test_each_run_is_stored_once_and_one_exporter_publishes(row, kind, tmp_path):
    with begun(row, kind, tmp_path) as scene:
        with watched(scene) as twice:
            row.trouble(scene)
            ended = time.monotonic()
            scene.is_up(True)
            scene.goes_on()
            for probe in scene.probes:
                probe.stopped = True
            runs = made(scene.probes)
            expected = runs, {boot: len(numbers) for boot, numbers in runs.items()}
            eventually(lambda: all(probe.is_collected for probe in scene.probes))
            if scene.server is not None:
                with closing(open_store(scene.location)) as store:
                    eventually(lambda: stored(store) == expected)
            eventually(lambda: [*map(regressed, scene.exporters)].count(True) == 1)
        assert not [at for at in twice if not row.parts or at > ended + LEASE_SECONDS]  # two publishers
        for exporter in scene.exporters:
            exporter.stop()
        with closing(open_store(scene.location)) as store:
            assert store.database.set_aside_at is None
            assert stored(store) == expected
        if scene.server is not None:
            one_owner_at_a_time(scene.server, scene.location)
    print(f"{sum(expected[1].values()):,} runs of {len(runs)} starts, each stored once")
