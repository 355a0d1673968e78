"""Operation tokens: `tko_` and a JWT that identifies a prepared turn. Pure.

Tokens are not stored. A token is valid for its tenant only, and gives no rights beyond those of the caller's key.
"""

from datetime import datetime
from typing import Final

import jwt
from jwt.types import Options
from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from app.core.errors import FieldError, Invalid
from app.core.ids import TenantId, format_id

PREFIX: Final = "tko_"
_ALGORITHM: Final = "HS256"
_OPTIONS: Final[Options] = {"verify_signature": True, "verify_exp": False, "verify_iat": False}
_FIELD: Final = "/operation_token"


class PreparedOperation(BaseModel):
    """A prepared turn, as the claims of the JWT: `asked` input items are stored. `exp`: seconds since 1970."""

    model_config = ConfigDict(extra="forbid")

    tenant: StrictStr
    project: StrictStr
    session: StrictStr
    turn: StrictStr
    asked: StrictInt
    exp: StrictInt


def sign_operation(secret: bytes, operation: PreparedOperation) -> str:
    """Return the text of a token."""
    return PREFIX + jwt.encode(operation.model_dump(), secret, algorithm=_ALGORITHM)  # pyright: ignore[reportUnknownMemberType]


def read_operation(secret: bytes, text: str, *, tenant_id: TenantId, now: datetime) -> PreparedOperation:
    """Verify a token. Raises Invalid `operation_token_invalid`, also for another tenant's token, or `…_expired`."""
    operation = _verified(secret, text)
    if operation is None or operation.tenant != format_id(tenant_id):
        raise Invalid(
            "operation_token_invalid",
            "Invalid operation token; prepare the turn again.",
            fields=[FieldError(_FIELD, "not a token of this tenant")],
        )
    if operation.exp <= now.timestamp():
        raise Invalid(
            "operation_token_expired",
            "This operation token has expired; prepare the turn again, or store its answer with after-turn.",
            fields=[FieldError(_FIELD, "expired")],
        )
    return operation


def _verified(secret: bytes, text: str) -> PreparedOperation | None:
    if not text.startswith(PREFIX):
        return None
    try:
        claims = jwt.decode(  # pyright: ignore[reportUnknownMemberType]
            text.removeprefix(PREFIX), secret, algorithms=[_ALGORITHM], options=_OPTIONS
        )
        return PreparedOperation.model_validate(claims)
    except (jwt.InvalidTokenError, ValidationError, ValueError):
        return None
