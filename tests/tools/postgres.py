"""A separate PostgreSQL server for a test: in a temporary folder, on a free loopback port, not as root."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ports import free_port

PASSWORD = "not-a-secret"
_QUICK = {
    # These tests simulate no power failure, so fsync is off. `synchronous_commit` stays on: otherwise a
    # killed server would lose committed transactions.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "80",
    "autovacuum": "off",
    "listen_addresses": "127.0.0.1",
}


@functools.cache
def programs() -> Path | None:
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    return folders[-1] if folders else None


def needed() -> Path:
    """Return the folder with the programs. Without PostgreSQL, skip the test; in CI, fail the test."""
    folder = programs()
    if folder is None:
        reason = "these tests need PostgreSQL's programs: apt-get install postgresql"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; CI may not skip them")
        pytest.skip(reason)
    return folder


class Postgres:
    """A PostgreSQL server. The user ``postgres`` needs a password over TCP, but none at the socket.

    Args:
        folder: Empty folder that the server's user may read.
        environment: Additional environment variables of the server.
        settings: Additional settings of postgresql.conf.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, **settings: str) -> None:
        self.folder = folder
        self._environment = environment or {}
        self._programs = needed()
        self._settings = _QUICK | settings
        self._user = None
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            self._user = next(name for name in ("postgres", "nobody") if _exists(name))
            shutil.chown(folder, self._user)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            "initdb", f"--pgdata={self._data}", "--username=postgres", "--auth-local=trust",
            "--auth-host=scram-sha-256", f"--pwfile={password}", "--no-sync", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = self._started()
        deadline = time.monotonic() + 30
        while self._call("pg_isready", "-h", self.folder, "-p", self.port).returncode != 0:
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)

    def _started(self) -> subprocess.Popen[bytes]:
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self._as_user("postgres", "-D", self._data, "-p", self.port, "-k", self.folder, *options),
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def stop(self, kill: int = signal.SIGINT) -> None:
        """Stop the server and all of its processes.

        Args:
            kill: SIGINT for an orderly end, SIGKILL for a crash.
        """
        if self._process is not None:
            if kill == signal.SIGKILL:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, kill)
            else:
                os.kill(self.pid, kill)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def signal_all(self, number: int) -> None:
        assert self._process is not None
        for line in subprocess.run(
            ["ps", "-e", "-o", "pid=,ppid="], check=True, capture_output=True, text=True
        ).stdout.splitlines():
            pid, parent = map(int, line.split())
            if self.pid in (pid, parent):
                os.kill(pid, number)

    def sql(self, statement: str, url: str = "") -> str:
        """Execute a statement as the superuser.

        Args:
            statement: Any SQL statement.
            url: URL from :meth:`database`; empty for the database ``postgres``.

        Returns:
            The output of psql, without headings.
        """
        database = urlsplit(url).path[1:] or "postgres"
        done = self._call(
            "psql", "-h", self.folder, "-p", self.port, "-U", "postgres", "-d", database,
            "-v", "ON_ERROR_STOP=1", "-qAt", "-c", statement,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def database(self) -> str:
        """Create an empty database, and return its URL over the socket."""
        name = f"t{time.monotonic_ns()}"
        self.sql(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self.folder}&port={self.port}"

    def own(self, path: Path) -> None:
        """Let only the server's user read this file, as PostgreSQL requires for its key."""
        path.chmod(0o600)
        if self._user is not None:
            shutil.chown(path, self._user)

    def _as_user(self, program: str, *arguments: object) -> list[str]:
        # Do not set the variables for setpriv: otherwise root would own the shared memory of libfaketime.
        variables = [f"{name}={value}" for name, value in self._environment.items() if program == "postgres"]
        command = ["env", *variables, str(self._programs / program), *map(str, arguments)]
        if self._user is None:
            return command
        found = pwd.getpwnam(self._user)
        ids = [f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups"]
        return ["setpriv", *ids, *command]

    def _call(self, program: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self._as_user(program, *arguments), capture_output=True, timeout=60, cwd=self.folder
        )

    def _run(self, program: str, *arguments: object) -> None:
        done = self._call(program, *arguments)
        assert done.returncode == 0, done.stderr.decode()


def _exists(name: str) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


@contextmanager
def running(environment: Mapping[str, str] | None = None, /, **settings: str) -> Iterator[Postgres]:
    """Run a separate server for one test.

    Args:
        environment: Additional environment variables of the server.
        settings: Additional settings of postgresql.conf.
    """
    needed()
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder), environment, **settings)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGKILL)
