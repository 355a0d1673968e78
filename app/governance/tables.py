"""Table of the receipts of erasures. A receipt has no personal data: of the subject, it has a keyed hash."""

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    LargeBinary,
    Table,
    Text,
    Uuid,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import JSONB

from app.core.database.metadata import METADATA

_TIME = DateTime(timezone=True)

erasures = Table(
    "erasures",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("subject_kind", Text, nullable=False),
    Column("subject_hash", LargeBinary, nullable=False),
    Column("status", Text, nullable=False),
    Column("counts", JSONB, nullable=False, server_default=sql("'{}'")),
    Column("created_at", _TIME, nullable=False),
    Column("ended_at", _TIME),
    Column("signature", LargeBinary),
    CheckConstraint("subject_kind in ('conversation', 'owner', 'actor', 'tenant')", name="subject_kind"),
    CheckConstraint("status in ('open', 'complete', 'failed', 'cancelled')", name="status"),
    CheckConstraint(
        "(status = 'open') = (signature is null) and (status = 'open') = (ended_at is null)",
        name="signed",
    ),
)
"""Receipts of erasures: counts, a keyed hash of the subject, a signature; no personal data."""
