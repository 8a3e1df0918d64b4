"""What the controller decides about hosts, and what of a job decides where and when its trials
begin.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table of hosts; jobs from before have priority 0 and trials that stay on the hosts
    of their plan.
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
    """Forget them."""
    for column in ("joined_s", "placement", "priority"):
        op.drop_column("jobs", column)
    op.drop_table("hosts")
