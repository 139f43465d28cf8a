"""Tables of a store: created once, upgraded completely or not at all, and refused if they belong to another program."""

import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from postgres import PASSWORD
from stores import CANARY, SEARCH, T, generation, query, sample, samples

from infercanary.store import migrate, schema
from infercanary.store.base import StoreError
from infercanary.store.benchmarks import read
from infercanary.store.store import open_store
from tests.programs import ROOT, ended

START, RUNS = generation(), samples(20)
REVISION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{:04}", "{:04}"

def upgrade():
    op.add_column("start", sa.Column("{}", sa.Text, nullable=False, server_default="?"))
"""


@pytest.fixture
def newer(tmp_path, monkeypatch):
    """Turn this process into a newer InferCanary with two newer schemas, each with an additional column."""

    def upgraded(*columns):
        folder = tmp_path / "migrations"
        shutil.copytree(migrate.MIGRATIONS, folder)
        for number, column in enumerate(columns, 3):
            revision = REVISION.format(number, number - 1, column)
            (folder / "versions" / f"{number:04}_more.py").write_text(revision)
        monkeypatch.setattr(schema, "SCHEMA", f"{number:04}")
        monkeypatch.setattr(migrate, "MIGRATIONS", folder)

    return upgraded


def version_and_columns(store):
    with store.session.work() as connection:
        row = connection.exec_driver_sql("SELECT * FROM start").mappings().one()
    [(version,)] = query(store, "SELECT version_num FROM infercanary_schema")
    return version, {*row}


def filled(location):
    with closing(open_store(location)) as store:
        assert store.take(START, RUNS) == len(RUNS)
    return location


def refusal(location):
    with pytest.raises(StoreError) as caught, closing(open_store(location)) as store:
        store.canaries()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_older_tables_are_brought_up_to_date_with_all_that_is_in_them_and_newer_ones_are_left_alone(
    location, newer, capsys, monkeypatch
):
    filled(location)
    newer("zone", "rack")
    if location.startswith("postgresql"):
        assert "older InferCanary created the tables (schema 0002); upgrade them as their owner, with" in (
            refusal(location)
        )
    assert migrate.main([location]) == 0
    assert "up to date" in capsys.readouterr().out
    with closing(open_store(location)) as store:
        version, columns = version_and_columns(store)
        assert version == "0004"
        assert {"zone", "rack"} <= columns
        assert store.take(START, [*RUNS, sample(20)]) == 1
    monkeypatch.undo()
    assert "a newer InferCanary wrote this store (schema `0004`" in refusal(location)


def test_tables_of_the_first_revision_get_the_table_of_benchmarks(location):
    with closing(open_store(filled(location))) as store:
        query(store, "DROP TABLE benchmark")
        query(store, "UPDATE infercanary_schema SET version_num = '0001'")
    assert migrate.main([location]) == 0
    with closing(open_store(location)) as store:
        assert version_and_columns(store)[0] == schema.SCHEMA
        assert read(store.session) == []
        assert [len(samples) for _, samples in store.generations(SEARCH, CANARY)] == [len(RUNS)]


def test_an_upgrade_that_fails_changes_nothing(location, newer, monkeypatch):
    filled(location)
    newer("zone", "host")
    assert migrate.main([location]) == 2
    monkeypatch.setattr(schema, "SCHEMA", "0002")
    with closing(open_store(location)) as store:
        version, columns = version_and_columns(store)
        assert version == "0002"
        assert "zone" not in columns
        assert [len(samples) for _, samples in store.generations(SEARCH, CANARY)] == [len(RUNS)]


def test_tables_of_another_program_are_left_alone(postgres, capsys):
    url = postgres.database()
    postgres.sql("CREATE TABLE sample (id integer)", url)
    assert migrate.main([url]) == 2
    said = capsys.readouterr().err.strip()
    assert "the database has tables of another program or of version 0.1.0; use an empty database" in said
    assert said == refusal(url)


def test_only_one_of_ten_concurrent_exporters_makes_the_tables(postgres):
    url, barrier = postgres.database(), threading.Barrier(10)

    def begin(_):
        with closing(open_store(url)) as store:
            barrier.wait()
            store.canaries()

    with ThreadPoolExecutor(10) as pool:
        assert [*pool.map(begin, range(10))] == [None] * 10  # none fails
    assert postgres.sql("SELECT version_num FROM infercanary_schema", url) == schema.SCHEMA


_LOADED = """
import sys
import infercanary.exporter.app
from infercanary.store.store import open_store
open_store(sys.argv[1]).canaries()
print([name for name in ("alembic", "psycopg", "sqlalchemy") if name in sys.modules])
"""


def test_an_exporter_loads_no_library_that_its_store_does_not_need(tmp_path):
    assert ended(sys.executable, "-c", _LOADED, tmp_path / "store.db").stdout == "['sqlalchemy']\n"


def test_a_role_with_the_grants_of_the_docs_does_all_and_may_not_drop(postgres, tmp_path):
    url, empty = postgres.database(), postgres.database()
    assert migrate.main([url]) == 0
    page = (ROOT / "docs" / "fleet.md").read_text()
    grants = page.partition("```sql\n")[2].partition("```")[0].replace("'…'", f"'{PASSWORD}'")
    name, other = (each.partition("@/")[2].partition("?")[0] for each in (url, empty))
    postgres.sql("DROP ROLE IF EXISTS infercanary")
    postgres.sql(grants.replace("DATABASE infercanary", f"DATABASE {name}"), url)
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    by_role = f"postgresql://infercanary@127.0.0.1:{postgres.port}/{name}?password_file={password}"
    with closing(open_store(by_role)) as store:
        assert store.fleet.hold({SEARCH}) == {SEARCH}
        assert store.take(START, RUNS) == len(RUNS)
        store.thin(T)
        store.save(SEARCH, CANARY, "verdict", T, b"{}")
        store.fleet.put_finding(SEARCH, CANARY, T, b"f", b"")
        for statement in ("DROP TABLE sample", "CREATE TABLE mine ()"):
            with pytest.raises(StoreError, match=r"lacks a privilege, .+; docs/fleet\.md has .+ the grants"):
                query(store, statement)
    assert "permission denied" in refusal(by_role.replace(name, "postgres"))
    postgres.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC", empty)
    assert "`python -m infercanary.store.migrate LOCATION`" in refusal(by_role.replace(name, other))


def test_without_a_location_its_use_is_said(capsys):
    assert migrate.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
