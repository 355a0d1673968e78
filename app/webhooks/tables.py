"""Tables of webhooks: the receivers, one row per event and receiver, and the lanes that keep the order.

A lane is one conversation at one webhook: its pending deliveries are sent one after the other, by one process. It has
a row while deliveries are pending. No foreign keys lead to `webhooks`: deleting one must not take as long as its
deliveries are many, so a sweep deletes them.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy import text as sql

from app.core.database.metadata import METADATA

_TIME = DateTime(timezone=True)

webhooks = Table(
    "webhooks",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("url", Text, nullable=False),
    Column("description", Text),
    # null: all types, also those of later releases
    Column("event_types", ARRAY(Text)),
    Column("project", Text),
    Column("include_content", Boolean, nullable=False),
    Column("is_enabled", Boolean, nullable=False, server_default=sql("true")),
    Column("disabled_reason", Text),
    # the first failure since the last success
    Column("failing_since", _TIME),
    # the secret is derived from it and from the installation's
    Column("secret_version", Integer, nullable=False, server_default=sql("1")),
    Column("previous_secret_until", _TIME),
    Column("created_at", _TIME, nullable=False),
    Column("updated_at", _TIME, nullable=False),
    CheckConstraint("disabled_reason in ('request', 'failing', 'gone')", name="disabled_reason"),
    CheckConstraint("is_enabled = (disabled_reason is null)", name="enabled"),
)
"""Receivers of events: URL, filters, the version of the secret, which is derived and not stored."""
webhook_deliveries = Table(
    "webhook_deliveries",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("webhook_id", Uuid, primary_key=True),
    Column("event_id", Uuid, primary_key=True),
    # given under the lock of the conversation's head, so that it has the order of the commits
    Column("number", BigInteger, Identity(always=True), nullable=False),
    Column("event_type", Text, nullable=False),
    Column("lane", Uuid, nullable=False),
    Column("conversation_id", Uuid),
    Column("object_id", Uuid, nullable=False),
    Column("status", Text, nullable=False, server_default=sql("'pending'")),
    Column("attempts", Integer, nullable=False, server_default=sql("0")),
    Column("last_status", SmallInteger),
    Column("last_error", Text),
    Column("recorded_at", _TIME, nullable=False),
    Column("retry_until", _TIME, nullable=False),
    Column("attempted_at", _TIME),
    Column("delivered_at", _TIME),
    CheckConstraint("status in ('pending', 'delivered', 'dead')", name="status"),
    Index("webhook_deliveries_number_key", "tenant_id", "webhook_id", "number", unique=True),
    Index(
        "webhook_deliveries_pending_idx",
        "tenant_id",
        "webhook_id",
        "lane",
        "number",
        postgresql_where=sql("status = 'pending'"),
    ),
    Index("webhook_deliveries_recorded_at_idx", "recorded_at"),
)
"""One row per event and webhook: ids, status, attempts; never content. Stored with the commit of the change."""
webhook_lanes = Table(
    "webhook_lanes",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("webhook_id", Uuid, primary_key=True),
    Column("lane", Uuid, primary_key=True),
    # when the first pending delivery is to be sent; infinity while the webhook is disabled
    Column("due_at", _TIME, nullable=False),
    Column("locked_by", Uuid),
    Column("locked_until", _TIME),
    Index("webhook_lanes_receiver_idx", "tenant_id", "webhook_id", "due_at"),
)
"""One row per conversation and webhook with pending deliveries: when the first is due, and the lease."""
