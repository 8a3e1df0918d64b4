"""Runs migrations on the connection that `schema.upgrade` hands over; there is no other way in."""

from alembic import context

from fleet_controller.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
