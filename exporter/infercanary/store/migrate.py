"""Brings the tables of a store up to date: ``python -m infercanary.store.migrate LOCATION``."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).with_name("migrations")


def is_older(version: str, shown: str) -> bool:
    """Return whether tables are older than those of :mod:`.schema`.

    Raises:
        StoreError: They are newer.
    """
    from infercanary.store.base import StoreError
    from infercanary.store.schema import SCHEMA

    if version > SCHEMA:
        raise StoreError(
            f"{shown}: written by a newer InferCanary (schema {version}, this one knows {SCHEMA}); upgrade this one, "
            "or name another store"
        )
    return version < SCHEMA


def make(connection: Connection) -> None:
    """Make the tables of :mod:`.schema` in an empty database, within the caller's transaction."""
    from infercanary.store import schema

    schema.metadata.create_all(connection, checkfirst=False)
    connection.execute(schema.schema.insert(), {"version_num": schema.SCHEMA})
    connection.execute(schema.clock.insert(), {"age": 0.0})


def upgrade(connection: Connection) -> None:
    """Bring the tables from the schema that they are in to the newest, within the caller's transaction."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    from infercanary.store.schema import schema

    context = MigrationContext.configure(connection)
    scripts = ScriptDirectory(str(MIGRATIONS))
    version = connection.scalar(schema.select())
    with Operations.context(context):
        for script in reversed([*scripts.iterate_revisions("head", version)]):
            script.module.upgrade()
            connection.execute(schema.update().values(version_num=script.revision))


def main(arguments: list[str]) -> int:
    """Make the tables of a store, or bring them up to date.

    Args:
        arguments: The location alone.

    Returns:
        An exit code: 0, or 2 with one line on the standard error.
    """
    if len(arguments) != 1:
        print("usage: python -m infercanary.store.migrate postgresql://OWNER@HOST/DATABASE", file=sys.stderr)
        return 2
    try:
        from infercanary.store.base import StoreError
        from infercanary.store.postgres import PostgresDatabase
        from infercanary.store.store import Store, check
    except ModuleNotFoundError as error:
        fix = "in a checkout: pip install '.[exporter,postgres]'"
        print(f"infercanary.store.migrate needs the module `{error.name}`; {fix}", file=sys.stderr)
        return 2
    try:
        database = check(arguments[0])
        if isinstance(database, PostgresDatabase):
            database.upgrades = True
        with closing(Store(database)) as store, store.session.work():
            pass
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    print("the schema is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
