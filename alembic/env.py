"""Runs the migrations: online on the owner's connection that the caller opened, offline as SQL to read and lint."""

from alembic import context

import app.conversations.models
import app.index.models
import app.tenancy.models  # noqa: F401
from app.core.tables import METADATA

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, target_metadata=METADATA)
else:
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=METADATA,
        transaction_per_migration=True,
    )
with context.begin_transaction():
    context.run_migrations()
