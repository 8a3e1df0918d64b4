"""Adds the table with the decisions about hosts, and columns for the priority and placement of
jobs.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of hosts and the new columns of jobs. Existing jobs get priority 0, and
    their trials stay on the hosts of their plan.
    """
    op.create_table(
        "hosts",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("drained", sa.Boolean, nullable=False),
        sa.Column("drain_reason", sa.Text, nullable=False),
        sa.Column("aside", sa.Text, nullable=False),
        sa.Column("aside_since_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("setbacks", sa.Integer, nullable=False),
        sa.Column("failures", sa.Text, nullable=False),
    )
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("placement", sa.Text, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("joined_s", sa.Float, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the table of hosts and the columns for priority, placement and host time."""
    for column in ("joined_s", "placement", "priority"):
        op.drop_column("jobs", column)
    op.drop_table("hosts")
