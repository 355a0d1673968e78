"""Operation tokens: `tko_` and a JWT that identifies a prepared turn. Pure.

Tokens are not stored. A token is valid for its tenant only, and gives no rights beyond those of the caller's key.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import jwt
from jwt.types import Options
from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from app.core.errors import FieldError, Invalid
from app.core.ids import TenantId, format_id, parse_id

PREFIX: Final = "tko_"
_ALGORITHM: Final = "HS256"
_OPTIONS: Final[Options] = {"verify_signature": True, "verify_exp": False, "verify_iat": False}
_FIELD: Final = "/operation_token"


@dataclass(frozen=True, slots=True)
class PreparedOperation:
    """A prepared turn: `asked` input items are stored."""

    tenant_id: TenantId
    project: str
    session_id: str
    turn_id: str
    asked: int
    expires_at: datetime


class _OperationPayload(BaseModel):
    """The claims of the JWT."""

    model_config = ConfigDict(extra="forbid")

    tenant: StrictStr
    project: StrictStr
    session: StrictStr
    turn: StrictStr
    asked: StrictInt
    exp: StrictInt


def sign_operation(secret: bytes, operation: PreparedOperation) -> str:
    """Return the text of a token."""
    payload = {
        "tenant": format_id(operation.tenant_id),
        "project": operation.project,
        "session": operation.session_id,
        "turn": operation.turn_id,
        "asked": operation.asked,
        "exp": int(operation.expires_at.timestamp()),
    }
    return PREFIX + jwt.encode(payload, secret, algorithm=_ALGORITHM)  # pyright: ignore[reportUnknownMemberType]


def read_operation(secret: bytes, text: str, *, tenant_id: TenantId, now: datetime) -> PreparedOperation:
    """Verify a token. Raises Invalid `operation_token_invalid`, also for another tenant's token, or `…_expired`."""
    payload = _payload(secret, text)
    if payload is None or _uuid(payload.tenant) != tenant_id:
        raise Invalid(
            "operation_token_invalid",
            "Invalid operation token; prepare the turn again.",
            fields=[FieldError(_FIELD, "not a token of this tenant")],
        )
    expires_at = datetime.fromtimestamp(payload.exp, UTC)
    if expires_at <= now:
        raise Invalid(
            "operation_token_expired",
            "This operation token has expired; prepare the turn again, or store its answer with after-turn.",
            fields=[FieldError(_FIELD, "expired")],
        )
    return PreparedOperation(tenant_id, payload.project, payload.session, payload.turn, payload.asked, expires_at)


def _payload(secret: bytes, text: str) -> _OperationPayload | None:
    if not text.startswith(PREFIX):
        return None
    try:
        decoded = jwt.decode(  # pyright: ignore[reportUnknownMemberType]
            text.removeprefix(PREFIX), secret, algorithms=[_ALGORITHM], options=_OPTIONS
        )
        return _OperationPayload.model_validate(decoded)
    except (jwt.InvalidTokenError, ValidationError, ValueError):
        return None


def _uuid(text: str) -> UUID | None:
    try:
        return parse_id(text)
    except ValueError:
        return None
