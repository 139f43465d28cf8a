"""First revision: the original tables. schema.py creates new databases; old ones are upgraded from this revision."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: this revision has no predecessor."""
