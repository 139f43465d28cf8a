"""PostgreSQL refuses requests for a while: no run is lost or stored twice, and a metric shows the fault."""

import shutil
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from small_disk import fill, mounted
from structlog.testing import capture_logs

from infercanary.judge.model import ServiceKey
from infercanary.store.base import StoreError
from infercanary.store.store import open_store
from tests.integration.exporter.processes import certificate
from tests.integration.fleet.parts import HOSTS, fleet, in_time, judge, submit
from tests.integration.fleet.world import eventually, location
from tests.unit.exporter.factories import value

KEY = ServiceKey("", "slower")


def survives(stack, postgres, url, store, breaks, repairs, says):
    """Submit a third of the reports before the database fails, a third during the failure, and a third afterwards."""
    parts = [part for part in in_time(fleet()) if part.start.service == KEY.name]
    third = len(parts) // 3
    judging = judge(stack, store, HOSTS[0])

    def take(several):
        for number, part in enumerate(several):
            submit(judging, part)
            if number % 9 == 0:
                judging.turn()
        return sum(len(part.runs) for part in several)

    before = take(parts[:third])
    judging.turn()
    assert (value(judging, "store_up"), value(judging, "stored_runs_total")) == (1.0, before)

    breaks()
    with capture_logs() as logged:
        meanwhile = take(parts[third : 2 * third])
    assert value(judging, "store_up") == 0.0
    assert value(judging, "stored_runs_total") < before + meanwhile  # a full disk may take some runs
    assert judging.ownership.publishes(KEY)  # findings stay
    complaints = [line["error"] for line in logged if line["log_level"] == "error"]
    assert says in complaints[-1]
    assert "\n" not in complaints[-1]
    assert len(complaints) <= 3

    repairs()

    def goes_on():
        judging.turn()
        return value(judging, "store_up") == 1.0

    eventually(goes_on, 30)
    total = before + meanwhile + take(parts[2 * third :])
    judging.turn()
    counts = (
        "SELECT (SELECT sum(taken) FROM series), count(*), count(DISTINCT (series, sequence)) FROM sample"
    )
    assert postgres.sql(counts, url) == f"{total}|{total}|{total}"
    alone = judge(stack, None)
    for part in parts:
        submit(alone, part)
    alone.turn()
    assert alone.findings[KEY]["c"].result.state == "regressed"
    assert judging.findings[KEY]["c"].result == alone.findings[KEY]["c"].result


# Disk ------------------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_its_disk_is_full(postgres, judges):
    with mounted(postgres.folder / "small", 24, "postgres") as small:
        postgres.sql(f"CREATE TABLESPACE small LOCATION '{small}'")
        url = postgres.database()
        name = urlsplit(url).path[1:]
        postgres.sql(f"ALTER DATABASE {name} SET TABLESPACE small")
        survives(
            judges, postgres, url, url,
            breaks=lambda: fill(small),
            repairs=(small / "ballast").unlink,
            says="the database's disk is full; stored data is not lost",
        )  # fmt: skip
        judges.close()
        postgres.sql(f"DROP DATABASE {name}")
        postgres.sql("DROP TABLESPACE small")


# Password --------------------------------------------------------------------------------------------------------


def test_its_password_is_changed(postgres, judges, tmp_path):
    url = postgres.database()
    postgres.sql("DROP ROLE IF EXISTS rotated")
    postgres.sql("CREATE ROLE rotated LOGIN SUPERUSER PASSWORD 'old'")
    at = location(postgres, url, tmp_path).replace("//postgres@", "//rotated@")
    (tmp_path / "password").write_text("old")

    def breaks():
        postgres.sql("ALTER ROLE rotated PASSWORD 'new'")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'")

    survives(
        judges, postgres, url, at, breaks,
        repairs=lambda: (tmp_path / "password").write_text("new\n"),
        says="the server rejected the password; the file is read again at each attempt",
    )  # fmt: skip


# Certificate -----------------------------------------------------------------------------------------------------


def reload(postgres, **settings):
    """Change settings of the running server, and wait until new connections use the settings."""
    for name, new in settings.items():
        postgres.sql(f"ALTER SYSTEM SET {name} = '{new}'")
    log = postgres.folder / "log"
    size = log.stat().st_size
    postgres.sql("SELECT pg_reload_conf()")
    eventually(lambda: "reloading configuration files" in log.read_text()[size:], 10)
    time.sleep(0.2)


class Server:
    """The server with TLS and one of two certificates: for its own address, or for another address.

    Args:
        postgres: The running server.
        folder: Folder for copies that clients read.
    """

    def __init__(self, postgres, folder):
        self.postgres, self.folder = postgres, folder
        self.right = self._made("right", "127.0.0.1")
        self.other = self._made("other", "127.0.0.9")

    def _made(self, name, address):
        made = certificate(self.postgres.folder, name, address=f"IP:{address}")
        for path in (made, made.with_suffix(".key")):
            shutil.copy(path, self.folder)
            self.postgres.own(path)
        return self.folder / made.name

    def has(self, certificate):
        pem = self.postgres.folder / certificate.name
        reload(self.postgres, ssl_cert_file=pem, ssl_key_file=pem.with_suffix(".key"), ssl="on")


@pytest.fixture
def server(postgres, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl for the certificates")
    yield Server(postgres, tmp_path)
    postgres.sql("ALTER SYSTEM RESET ALL")
    reload(postgres)


def test_each_mode_connects_or_says_in_one_line_why_not(server, postgres):
    at = location(postgres, postgres.database(), server.folder)

    def answer(mode, certificate):
        ca = f"&sslrootcert={certificate}" if mode.startswith("verify") else ""
        with closing(open_store(f"{at}&sslmode={mode}{ca}")) as store:
            try:
                store.canaries()
            except StoreError as error:
                return str(error)
        return ""

    right, other = server.right, server.other
    assert "the server has no TLS; set ssl = on in its configuration" in answer("require", right)
    server.has(right)
    for mode in ("disable", "require", "verify-ca", "verify-full"):
        assert answer(mode, right) == "", mode
    for ca, says in (
        (other, "the server's certificate has expired, or its CA is not in the file of sslrootcert"),
        (other.with_name("none.pem"), 'none.pem" does not exist Either provide the file'),
    ):
        found = answer("verify-full", ca)
        assert says in found
        assert "\n" not in found
    server.has(other)
    assert answer("verify-ca", other) == ""
    found = answer("verify-full", other)
    assert "the server's certificate has another host name; use that name in `store:`" in found
