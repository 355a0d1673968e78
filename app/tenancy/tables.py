"""Tables of tenants, their keys and limits, idempotent requests, and what tenants use."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.core.database.metadata import METADATA

_NOW = func.now()


def _tenant() -> Column[object]:
    reference = ForeignKey("tenants.tenant_id", ondelete="CASCADE")
    return Column("tenant_id", Uuid, reference, primary_key=True)


# in the form that Postgres prints, because two random values are never equal
_RANDOM_BYTES = (
    "sha256(convert_to((((gen_random_uuid())::text || (gen_random_uuid())::text)"
    " || (gen_random_uuid())::text), 'UTF8'::name))"
)
installation = Table(
    "installation",
    METADATA,
    Column("id", Boolean, primary_key=True, server_default=text("true")),
    Column("secret", LargeBinary, nullable=False, server_default=text(_RANDOM_BYTES)),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    CheckConstraint("id", name="single"),
)
"""One row: the secret of the installation, which all servers share without configuration."""
tenants = Table(
    "tenants",
    METADATA,
    Column("tenant_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
)
"""Tenants."""
api_keys = Table(
    "api_keys",
    METADATA,
    _tenant(),
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("secret_hmac", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("agent_id", Text),
    Column("long_term_enabled", Boolean, nullable=False, server_default=text("true")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("previous_hmac", LargeBinary),
    Column("previous_expires_at", DateTime(timezone=True)),
    Column("rates", JSONB),
    Column("projects", ARRAY(Text)),
    Column("owners", ARRAY(Text)),
)
"""Names, scopes and HMACs of keys. The text of a key names its tenant, so a lookup stays within one tenant."""
idempotency_records = Table(
    "idempotency_records",
    METADATA,
    _tenant(),
    Column("key", Text, primary_key=True),
    Column("request_hmac", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("result_ids", ARRAY(Uuid), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)
"""HMAC of a key and a request, status and ids of the result. No content: responses are rendered from the rows."""
model_usage = Table(
    "model_usage",
    METADATA,
    _tenant(),
    Column("day", Date, primary_key=True),
    Column("purpose", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost", Numeric(24, 9), nullable=False),
    Index("model_usage_day_idx", "day"),
)
"""Tokens, calls and cost of chat models by tenant, day (UTC), purpose and model. Without an index on the counters."""
tenant_limits = Table(
    "tenant_limits",
    METADATA,
    _tenant(),
    Column("rates", JSONB, nullable=False),
    Column("quotas", JSONB, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
)
"""Rates and quotas that an operator set for a tenant."""
tenant_usage = Table(
    "tenant_usage",
    METADATA,
    _tenant(),
    Column("day", Date, primary_key=True),
    Column("turns", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("vectors", BigInteger, nullable=False),
)
"""Turns, bytes and vectors that a tenant stored, by day (UTC). A process adds to it once a minute."""
