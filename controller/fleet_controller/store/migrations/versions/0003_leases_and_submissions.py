"""Adds a table with the epoch of the controller that may write, and a table with the job that each
submit made.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create both tables. They are empty until the next controller start writes the first row."""
    op.create_table(
        "controller",
        sa.Column("row", sa.Integer, primary_key=True),
        sa.Column("controller_id", sa.String(64), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "submissions",
        sa.Column("request_key", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(128), sa.ForeignKey("jobs.job_id"), nullable=False),
    )


def downgrade() -> None:
    """Drop both tables."""
    for table in ("submissions", "controller"):
        op.drop_table(table)
