"""The first tables. New databases get the tables of today from schema.py; later revisions begin here."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: a database of this revision has these tables."""
