"""Location of a store, and accepted files: another program's file stays unchanged, a file of 0.1.0 is renamed."""

import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from stores import generation, samples
from structlog.testing import capture_logs

from infercanary.store import schema
from infercanary.store.base import StoreError
from infercanary.store.store import check, open_store
from tests.programs import GOLDEN
from tests.scenarios import cases, scenarios

LOCATIONS = scenarios(r"""
nosuch://host/db                          | nor a URL that begins with postgresql://
host=db dbname=x                          | nor a URL that begins with postgresql://
postgresql:db                             | nor a URL that begins with postgresql://
with\0nul                                 | is neither a file's path nor a URL that begins with postgresql://
/                                         | is a folder or a device; use a file
/dev/null                                 | is a folder or a device
postgresql://me:secret@db/x               | postgresql://db/x: the URL contains the password
postgresql://me@db/x?password=secret      | postgresql://db/x: the URL contains the password
postgresql://me:se/cret@db/x              | the URL contains the password
postgresql://me:se?cret@db/x              | the URL contains the password
postgresql://me@db/x?sslmod=require       | postgresql://db/x: invalid URI query parameter: "sslmod"
postgresql://me@db/x?lease_seconds=0      | lease_seconds: '0' is not a number from 1 to 600
postgresql://me@db/x?lease_seconds=soon   | lease_seconds: 'soon' is not a number from 1 to 600
postgresql://me@[db/x                     | IPv6 host address
""")


@cases(LOCATIONS)
def test_a_location_that_cannot_be_right_is_refused_before_it_is_opened_without_its_secrets(location, says):
    with pytest.raises(StoreError) as caught:
        check(location)
    assert says in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_file_has_its_schema_and_the_programs_id(tmp_path):
    path = tmp_path / "store.db"
    for _ in range(2):
        with closing(open_store(path)) as store:
            assert store.fleet is None
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT * FROM infercanary_schema").fetchall() == [(schema.SCHEMA,)]
        assert path.read_bytes()[68:72] == b"\x01\xca\x9a\x12"  # application id, which `file` reports
        assert {*tmp_path.iterdir()} == {path, Path(f"{path}-lock")}


FILES = scenarios("""
UPDATE infercanary_schema SET version_num = '7000' | a newer InferCanary wrote this store (schema `7000`, this
UPDATE infercanary_schema SET version_num = ''     | a newer InferCanary wrote this store
DELETE FROM infercanary_schema                     | a newer InferCanary wrote this store
PRAGMA application_id = 5                          | the database of another program; use another file
CREATE VIEW clocks AS SELECT * FROM clock          | contains `clocks`, which no exporter creates
ALTER TABLE clock ADD COLUMN w GENERATED ALWAYS AS (hex(zeroblob(500000000))) | contains `clock`, which no exporter
""")


@cases(FILES)
def test_a_file_that_is_not_ours_to_use_is_refused_and_not_touched(made, says, tmp_path):
    path = tmp_path / "store.db"
    open_store(path).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(made)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=re.escape(says)):
        open_store(path)
    assert path.read_bytes() == before
    assert {*tmp_path.iterdir()} == {path, Path(f"{path}-lock")}


def test_a_file_of_0_1_0_is_set_aside_with_its_log_and_a_new_one_is_begun(tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((GOLDEN / "store_schema_1.sqlite.gz").read_bytes()))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE generation SET image = 'logged'")
        database.commit()
        left = {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal")}
    for end, body in left.items():
        Path(f"{path}{end}").write_bytes(body)
    for count, warnings in ((4, 1), (0, 0)):
        with capture_logs() as logs, closing(open_store(path)) as store:
            assert store.take(generation(), samples(1, 5)) == count
        assert len(logs) == warnings
        for line in logs:
            with closing(sqlite3.connect(line["path"])) as database:
                rows = database.execute("SELECT image FROM generation").fetchall()
            assert rows == [("logged",)] * 4
            assert "0.1.0" in line["error"]
