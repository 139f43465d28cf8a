"""Second revision: benchmarks, as in schema.py. If that table changes, write this one out here."""

from alembic import op

from infercanary.store import schema

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    schema.benchmark.create(op.get_bind())
