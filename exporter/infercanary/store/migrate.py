"""Upgrade of a store's tables to the current schema: ``python -m infercanary.store.migrate LOCATION``."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).with_name("migrations")


def read_version(connection: Connection, shown: str) -> str | None:
    """Return the revision of the tables; None if the database has no tables of InferCanary.

    Raises:
        StoreError: The tables are newer than :mod:`.schema`, or have an unknown revision.
    """
    from sqlalchemy import inspect

    from infercanary.store import schema
    from infercanary.store.base import StoreError

    if not inspect(connection).has_table(schema.schema.name):
        return None
    version = str(connection.scalar(schema.schema.select()) or "")
    if not any(MIGRATIONS.glob(f"versions/{version or '?'}_*.py")):
        raise StoreError(
            f"{shown}: a newer InferCanary wrote this store (schema `{version}`, this version reads {schema.SCHEMA}); "
            "upgrade InferCanary, or use another store"
        )
    return version


def update(connection: Connection, version: str | None) -> None:
    """Create the tables of :mod:`.schema`, or upgrade older tables. The caller has begun a transaction."""
    from infercanary.store import schema

    if version is None:
        schema.metadata.create_all(connection, checkfirst=False)
        connection.execute(schema.schema.insert(), {"version_num": schema.SCHEMA})
        connection.execute(schema.clock.insert(), {"age": 0.0})
        return
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(MIGRATIONS))
    with Operations.context(MigrationContext.configure(connection)):
        for script in reversed([*scripts.iterate_revisions("head", version)]):
            script.module.upgrade()
            connection.execute(schema.schema.update().values(version_num=script.revision))


def main(arguments: list[str]) -> int:
    """Create or upgrade the tables of a store.

    Args:
        arguments: Command-line arguments: one location.

    Returns:
        Exit code: 0, or 2 after an error message of one line on standard error.
    """
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m infercanary.store.migrate postgresql://OWNER@HOST/DATABASE", file=sys.stderr)
        return 2
    try:
        from infercanary.store.base import StoreError
        from infercanary.store.store import Store, check
    except ModuleNotFoundError as error:
        fix = "in a checkout: pip install '.[exporter,postgres]'"
        print(f"infercanary.store.migrate needs the module `{error.name}`; {fix}", file=sys.stderr)
        return 2
    try:
        database = check(arguments[0])
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
