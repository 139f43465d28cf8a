"""The tables of a database: made, or brought to the schema of today, by the first exporter that may."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from infercanary.store.base import StoreError
from infercanary.store.postgres import sql

if TYPE_CHECKING:
    import psycopg


def migrate(db: psycopg.Connection[tuple[Any, ...]], shown: str) -> None:
    """Bring the database to the schema of today; of several exporters that start at once one does, the others wait.

    Args:
        db: A connection that commits by itself.
        shown: The database's name, for people.

    Raises:
        StoreError: A newer version wrote it, or this role may not change it.
        psycopg.Error: As psycopg does.
    """
    from psycopg import errors

    try:
        version = db.execute(sql.VERSION.encode()).fetchone()
    except errors.UndefinedTable:
        version = None
    if version is not None and version[0] > len(sql.STEPS):
        raise StoreError(
            f"{shown}: written by a newer InferCanary (schema {version[0]}, this one knows {len(sql.STEPS)}); "
            "upgrade this one, or name another database"
        )
    if version is not None and version[0] == len(sql.STEPS):
        return
    if version is None:
        # Two that create a table at the same time: the later one's IF NOT EXISTS may fail all the same.
        for statement in sql.CREATE_VERSION:
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                db.execute(statement.encode())
    while True:
        with db.transaction():
            [(known,)] = db.execute(sql.LOCK_VERSION.encode()).fetchall()
            if known >= len(sql.STEPS):
                return
            for statement in sql.STEPS[known]:
                db.execute(statement.encode())
            db.execute(sql.SET_VERSION.encode(), {"version": known + 1})
