"""The job that a job's text was read as at its submit."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column, empty for jobs that are there: what their text was read as is not known."""
    op.add_column("jobs", sa.Column("resolved", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("jobs", "resolved")
