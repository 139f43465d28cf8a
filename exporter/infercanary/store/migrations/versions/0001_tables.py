"""First revision: the original tables. New databases are created from schema.py; old databases are upgraded from this
revision.
"""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: this revision has no predecessor."""
