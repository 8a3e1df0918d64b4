"""Runs the migrations on the database connection that `store.database` passes in."""

from alembic import context

from fleet_controller.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
