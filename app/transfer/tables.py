"""Table of the uploaded lines of imports. `data` of a chunk is whole lines, compressed by zlib."""

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Index, Integer, LargeBinary, Table, Uuid
from sqlalchemy import text as sql

from app.core.database.metadata import METADATA

_TIME = DateTime(timezone=True)

import_chunks = Table(
    "import_chunks",
    METADATA,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id", ondelete="CASCADE"), primary_key=True),
    Column("import_id", Uuid, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("first_line", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=sql("clock_timestamp()")),
    Index("import_chunks_created_idx", "created_at"),
)
"""Uploaded lines of imports that have not ended."""
