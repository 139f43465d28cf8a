"""Second revision: adds the table of benchmarks. Before this table changes in schema.py, copy its present columns to
here.
"""

from alembic import op

from infercanary.store import schema

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    schema.benchmark.create(op.get_bind())
