"""Runs the migrations: online on the owner's connection that the caller opened, offline as SQL to read and lint."""

from alembic import context
from app.conversations import models as conversations
from app.core.tables import METADATA
from app.index import models as index
from app.tenancy import models as tenancy

# importing them describes their tables
_DESCRIBED = (tenancy, conversations, index)

if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql", literal_binds=True, target_metadata=METADATA, transaction_per_migration=True
    )
else:
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=METADATA,
        transaction_per_migration=True,
    )
with context.begin_transaction():
    context.run_migrations()
