"""What the store must hold, a row for each trouble: real exporters, probes that keep all runs, a file or PostgreSQL.

Each run is stored exactly once by start and sequence, one exporter publishes the verdict, and no exporter writes a
finding by a lease that it lost. Rows that are tests of their own, all found by `make campaign ARGS="-k store"`:
test_killed.py and test_lost.py (kill -9), test_disk.py (power, a disk that is full at any write), test_clock.py (a file
and the host's clock), test_away.py (the disk of PostgreSQL's log).
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from postgres import Postgres, running
from set_clock import Clock, needs_faketime
from slow_network import Proxy
from small_disk import fill, mounted

from infercanary.judge.model import Generation, Sample
from infercanary.store.retention import Retention
from infercanary.store.schema import SCHEMA
from infercanary.store.store import Store, open_store
from tests.integration.exporter.processes import KEY
from tests.integration.fleet.world import (
    SERVICE,
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

pytestmark = [pytest.mark.campaign, pytest.mark.store]
LEASE_SECONDS = 4.0
DAY = 86_400
T = 1_790_000_000.0


class Scene(NamedTuple):
    """Probes, exporters and their store."""

    folder: Path
    probes: list[Probe]
    exporters: list[Exporter]
    location: str
    """Of the store, as the test reads it."""
    clocks: list[Clock]
    """Of each exporter, or the first one of PostgreSQL; empty where no clock is set."""
    networks: list[Proxy]
    """Between each exporter and PostgreSQL; empty with a file."""
    server: Postgres | None
    rng: random.Random

    @property
    def postgres(self) -> Postgres:
        assert self.server is not None
        return self.server

    @property
    def file(self) -> Path:
        return Path(self.location)

    @property
    def holder(self) -> Exporter:
        """The exporter that publishes the verdict."""
        eventually(lambda: len(publishers(self.exporters)) == 1)
        [host] = publishers(self.exporters)
        return next(one for one in self.exporters if one.host == host)

    def kill(self) -> None:
        for exporter in self.exporters:
            exporter.kill()

    def is_up(self, up: bool, *exporters: Exporter) -> None:
        """Wait until these exporters say so of the store; none for all."""
        several = exporters or self.exporters
        eventually(lambda: all(one.values("infercanary_store_up").get("") == float(up) for one in several))

    def goes_on(self) -> None:
        """Wait until each exporter stored more runs."""
        before = [stored_by(one) for one in self.exporters]
        eventually(
            lambda: all(stored_by(one) > runs for one, runs in zip(self.exporters, before, strict=True))
        )

    def says(self, text: str, *exporters: Exporter) -> None:
        """Wait until these exporters logged it; none for all."""
        eventually(lambda: all(text in one.log for one in exporters or self.exporters))


def stored_by(exporter: Exporter) -> float:
    return exporter.values("infercanary_stored_runs_total").get("", 0.0)


# Troubles --------------------------------------------------------------------------------------------------------


def a_full_disk(scene: Scene) -> None:
    disk = scene.file.parent if scene.server is None else scene.postgres.folder / "small"
    ballast = fill(disk)
    scene.is_up(False)
    scene.says("disk is full")
    ballast.unlink()


def a_second_exporter_on_one_file(scene: Scene) -> None:
    [first] = scene.exporters
    urls = {probe.name: probe.url for probe in scene.probes}
    second = Exporter(scene.folder, "h-second", scene.location, urls)
    scene.exporters.append(second)
    second.start()
    scene.is_up(False, second)
    scene.says("in use by another process", second)
    before = stored_by(first)
    eventually(lambda: stored_by(first) > before)
    scene.is_up(True, first)
    first.kill()
    scene.exporters.remove(first)


def a_newer_schema(scene: Scene) -> None:
    def change(version: str) -> None:
        statement = f"UPDATE infercanary_schema SET version_num = '{version}'"
        if scene.server is not None:
            scene.postgres.sql(statement, scene.location)
            return
        with closing(sqlite3.connect(scene.file)) as database, database:
            database.execute(statement)

    for exporter in scene.exporters:
        exporter.stop()
    change("7000")
    before = scene.file.read_bytes() if scene.server is None else b""
    for exporter in scene.exporters:
        exporter.start()
    scene.is_up(False)
    scene.says("written by a newer InferCanary")
    assert before == (scene.file.read_bytes() if scene.server is None else b""), "it is not touched"
    for exporter in scene.exporters:
        exporter.kill()
    change(SCHEMA)
    for exporter in scene.exporters:
        exporter.start()


def a_removed_file(scene: Scene) -> set[str]:
    """Of starts that ended before, no exporter knows the image any more: their runs are left out."""
    for path in scene.file.parent.glob(f"{scene.file.name}*"):
        path.unlink()
    scene.says("was removed while in use")
    scene.is_up(True)
    scene.goes_on()
    assert scene.file.exists()
    [exporter] = scene.exporters
    exporter.kill()  # what was in the removed file is asked for again
    exporter.start()
    return made(scene.probes).keys() - {probe.boot_id for probe in scene.probes}


def probes_that_restart(scene: Scene) -> None:
    for _ in range(3):
        waiting = {*range(len(scene.probes))}
        while waiting:
            # Of a start that nobody saw while it ran the image is not known, and its runs are left out.
            seen = [one for one in waiting if scene.probes[one].boot_id in scene.probes[one].reported]
            for one in scene.rng.sample(seen, min(2, len(seen))):
                scene.probes[one].upgrade(0.03, "2")
                waiting.remove(one)


def postgres_restarted(scene: Scene) -> None:
    for _ in range(3):
        scene.postgres.stop()
        scene.is_up(False)
        scene.postgres.start()
        scene.goes_on()


def postgres_down_for_40_s(scene: Scene) -> None:
    scene.postgres.stop()
    began = time.monotonic()
    scene.is_up(False)
    eventually(lambda: time.monotonic() > began + 40)
    scene.postgres.start()


def backends_killed(scene: Scene) -> None:
    clients = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND client_addr IS NOT NULL"
    killed = 0
    while killed < 20:
        killed += int(scene.postgres.sql(f"SELECT count(pg_terminate_backend(pid)) {clients}"))
        time.sleep(scene.rng.uniform(0.2, 2))
    scene.says("terminating connection")


def tables_locked(scene: Scene) -> None:
    """Each table, until an exporter complains or for longer than a statement waits for a lock."""
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


def partitioned(scene: Scene) -> None:
    holder = scene.holder
    others = [one for one in scene.exporters if one is not holder]
    network = scene.networks[scene.exporters.index(holder)]
    network.hold_back(True)
    eventually(lambda: publishers(others))
    scene.is_up(False, holder)
    network.hold_back(False)
    eventually(lambda: not publishers([holder]))
    assert publishers(others)


def postgres_stopped(scene: Scene) -> None:
    scene.postgres.signal_all(signal.SIGSTOP)
    scene.is_up(False)
    scene.postgres.signal_all(signal.SIGCONT)


def slow_packets(scene: Scene) -> None:
    for network in scene.networks:
        network.delay_seconds = 0.4
    for _ in range(2):
        scene.goes_on()
    assert len(publishers(scene.exporters)) == 1
    for network in scene.networks:
        network.delay_seconds = 0.0


def dies(holder: Exporter, scene: Scene) -> None:
    """Kill the holder of the lease, and start it again once another exporter took over."""
    holder.kill()
    eventually(lambda: publishers(scene.exporters))
    holder.start()
    scene.is_up(True)


def exporters_clocks_set(scene: Scene) -> None:
    """One exporter a day ahead, one behind: whichever of them dies, the other one takes over."""
    first, second = scene.clocks
    for days in (1, -2):
        first.move(days * DAY)
        second.move(-days * DAY)
        scene.goes_on()
        for _ in range(2):
            dies(scene.holder, scene)


def postgres_clock_set(scene: Scene) -> None:
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
    """A trouble."""

    trouble: Callable[[Scene], set[str] | None]
    """Returns starts whose runs are lost by it."""
    kinds: tuple[str, ...] = ("postgres",)
    replicas: int = 4
    disk: int = 0
    """MiB of a disk for the store, where that is to be filled."""
    clock: str = ""
    """Whose clocks are set: "exporters" or "server"."""
    parts: bool = False
    """The holder of a lease cannot reach the database for longer than the lease lasts. It shows what it found
    meanwhile (docs/fleet.md), beside the exporter that takes over."""
    poll_seconds: float = 0.2


BOTH, FILE = ("file", "postgres"), ("file",)
ROWS = (
    Row(a_full_disk, BOTH, disk=24, parts=True),
    Row(a_second_exporter_on_one_file, FILE),
    Row(a_newer_schema, BOTH),
    Row(a_removed_file, FILE),
    Row(probes_that_restart, BOTH, replicas=20),
    Row(postgres_restarted, parts=True),
    Row(postgres_down_for_40_s, parts=True),
    Row(backends_killed),
    Row(tables_locked, parts=True),
    Row(partitioned, parts=True),
    Row(postgres_stopped, parts=True),
    Row(slow_packets, poll_seconds=10.0),
    Row(exporters_clocks_set, clock="exporters"),
    Row(postgres_clock_set, clock="server", parts=True),
)


@contextmanager
def begun(row: Row, kind: str, folder: Path) -> Iterator[Scene]:
    """The scene before the trouble: an upgrade was judged, and goes on."""
    with ExitStack() as stack:
        hosts = 1 if kind == "file" else 2
        clocks, server, networks, stores = [], None, [], [""]
        if row.clock:
            shared = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shared.chmod(0o755)  # the server runs as another user
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
        scene = Scene(folder, probes, exporters, at, clocks, networks, server, random.Random(11))
        stack.callback(scene.kill)
        eventually(lambda: len(publishers(exporters)) == 1)
        eventually(lambda: all(probe.boot_id in probe.reported for probe in probes))
        scene.goes_on()
        for probe in probes:
            probe.upgrade(0.03, "2")
        eventually(lambda: all(probe.boot_id in probe.reported for probe in probes))
        yield scene


@contextmanager
def watched(scene: Scene) -> Iterator[list[float]]:
    """Note when two exporters published at one moment, on the monotonic clock."""
    twice: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            first, *others = scene.exporters
            # One that publishes before and after another one does so at the same moment, too.
            if others and all(map(publishes, (first, *others, first))):
                twice.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield twice
    finally:
        ended.set()
        thread.join()


def stored(store: Store, lost: Collection[str]) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Start → the sequences of its runs, and how many the store counted as taken; of those that are not ``lost``.

    A lost one is known again if its report waited for the store when the file was removed.
    """
    found = store.generations(KEY, "c")
    runs = {g.boot_id: [run.sequence for run in runs] for g, runs in found if g.boot_id not in lost}
    return runs, {boot: count for (_, boot), count in store.taken(KEY, "c").items() if boot not in lost}


def publishes(exporter: Exporter) -> bool:
    return bool(exporter.values("infercanary_verdict"))


def regressed(exporter: Exporter) -> bool:
    shown = exporter.values("infercanary_verdict").items()
    return any(
        value and 'measure="latency"' in labels and 'verdict="regressed"' in labels for labels, value in shown
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a row mounts a small disk, which needs root")
@needs_faketime
@pytest.mark.parametrize(
    ("row", "kind"),
    [pytest.param(row, kind, id=f"{row.trouble.__name__}-{kind}") for row in ROWS for kind in row.kinds],
)
def test_each_run_is_stored_once_and_one_exporter_publishes(row: Row, kind: str, tmp_path: Path) -> None:
    with begun(row, kind, tmp_path) as scene:
        with watched(scene) as twice:
            lost = row.trouble(scene) or set()
            ended = time.monotonic()
            scene.is_up(True)
            scene.goes_on()
            for probe in scene.probes:
                probe.stopped = True
            runs = {boot: numbers for boot, numbers in made(scene.probes).items() if boot not in lost}
            expected = runs, {boot: len(numbers) for boot, numbers in runs.items()}
            eventually(lambda: all(probe.is_collected for probe in scene.probes))
            if scene.server is not None:
                with closing(open_store(scene.location)) as store:
                    eventually(lambda: stored(store, lost) == expected)
            shows = publishes if lost else regressed  # what was before the upgrade may be lost
            eventually(lambda: [*map(shows, scene.exporters)].count(True) == 1)
        assert not [at for at in twice if not row.parts or at > ended + LEASE_SECONDS], "two publishers"
        for exporter in scene.exporters:
            exporter.stop()
        with closing(open_store(scene.location)) as store:
            assert store.database.set_aside_at is None
            assert stored(store, lost) == expected
        if scene.server is not None:
            one_owner_at_a_time(scene.server, scene.location)
    print(f"{sum(expected[1].values()):,} runs of {len(runs)} starts, each stored once")


@needs_faketime
@pytest.mark.parametrize("kind", BOTH)
def test_the_size_is_bounded(kind: str, tmp_path: Path) -> None:
    """A container gets an image every other day, for 40 days; the clock that says how old they are is the store's."""
    runs_a_day = 2_000
    rows: list[int] = []
    with ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared.chmod(0o755)  # the server runs as another user
        clock = Clock(shared / "offset")
        at = str(tmp_path / "store.db")
        if kind == "postgres":
            at = stack.enter_context(running(clock.environment)).database()
        for day in range(40):
            image = f"sha256:{day // 2}"
            start = Generation(service=SERVICE, container="a", boot_id=image, started_at=T, image_id=image)
            clock.move(DAY)
            with closing(open_store(at)) as store:
                if store.fleet is not None:
                    assert store.fleet.hold({KEY}) == {KEY}
                first = day % 2 * runs_a_day
                for begin in range(first, first + runs_a_day, 500):
                    runs = [
                        Sample(n, "c", T + DAY * day + 40 * n, "ok", 0.01) for n in range(begin, begin + 500)
                    ]
                    assert store.take(start, runs) == 500
                    store.thin(T + DAY * day + 40 * begin)
                rows.append(sum(len(runs) for _, runs in store.generations(KEY, "c")))
                images = {g.image_id for g, _ in store.generations(KEY, "c")}
    half = rows[len(rows) // 2 - 1]
    print(f"{runs_a_day * len(rows):,} runs, {rows[-1]:,} rows; {half:,} after half of them")
    assert len(images) == Retention().images
    assert rows[-1] < 1.1 * half
    assert rows[-1] < runs_a_day * len(rows) / 4
