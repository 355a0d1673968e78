"""The text form of conversation tokens: `tkc_` and a JWT, signed with HS256 by a secret of the installation.

Pure. Tokens are not stored: a token contains its claims, and its epoch is compared with the conversation's. A token has
exactly one text, down to the unused bits of its last character.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

import jwt
from jwt.types import Options
from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictInt, StrictStr, ValidationError

from app.core.ids import ConversationId, KeyId, TenantId, format_id, parse_id
from app.formats.schemas import Role
from app.tenancy.schemas import Access

PREFIX: Final = "tkc_"

_ALGORITHM: Final = "HS256"
# the caller checks the expiry, to distinguish an expired token from an invalid one
_OPTIONS: Final[Options] = {"verify_signature": True, "verify_exp": False, "verify_iat": False}
_MAX_CHARACTERS: Final = 8192
# 43 characters of base64url have 258 bits, a signature 256: so the last character is one of sixteen
_FORM: Final = re.compile(r"tkc_([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048])", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a token. `key_id` is the key that created it; times are whole seconds."""

    tenant_id: TenantId
    conversation_id: ConversationId
    key_id: KeyId
    access: Access
    actor: str | None
    roles: tuple[Role, ...]
    epoch: str
    issued_at: datetime
    expires_at: datetime


def _read_id(value: object) -> UUID:
    return parse_id(str(value))


_Id = Annotated[UUID, BeforeValidator(_read_id)]


class _Payload(BaseModel):
    """The claims of the JWT."""

    model_config = ConfigDict(extra="forbid")

    tenant: _Id
    conversation: _Id
    key: _Id
    access: Access
    actor: StrictStr | None
    roles: list[Role]
    epoch: StrictStr
    iat: StrictInt
    exp: StrictInt


def sign_token(secret: bytes, claims: TokenClaims) -> str:
    """Return the text of a token."""
    payload = {
        "tenant": format_id(claims.tenant_id),
        "conversation": format_id(claims.conversation_id),
        "key": format_id(claims.key_id),
        "access": claims.access.value,
        "actor": claims.actor,
        "roles": [role.value for role in claims.roles],
        "epoch": claims.epoch,
        "iat": int(claims.issued_at.timestamp()),
        "exp": int(claims.expires_at.timestamp()),
    }
    return PREFIX + jwt.encode(payload, secret, algorithm=_ALGORITHM)  # pyright: ignore[reportUnknownMemberType]


def read_token(secret: bytes, text: str) -> TokenClaims | None:
    """Verify a token's signature and return its claims; None for any other text. The expiry is not checked."""
    match = _FORM.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if match is None:
        return None
    try:
        decoded = jwt.decode(match[1], secret, algorithms=[_ALGORITHM], options=_OPTIONS)  # pyright: ignore[reportUnknownMemberType]
        payload = _Payload.model_validate(decoded)
    except (jwt.InvalidTokenError, ValidationError):
        return None
    return TokenClaims(
        tenant_id=TenantId(payload.tenant),
        conversation_id=ConversationId(payload.conversation),
        key_id=KeyId(payload.key),
        access=payload.access,
        actor=payload.actor,
        roles=tuple(payload.roles),
        epoch=payload.epoch,
        issued_at=datetime.fromtimestamp(payload.iat, UTC),
        expires_at=datetime.fromtimestamp(payload.exp, UTC),
    )


def token_hmac(secret: bytes, text: str) -> bytes:
    """Return the cache key of a checked token (32 bytes)."""
    return hmac.digest(secret, b"conversation-token:" + text.encode(errors="surrogatepass"), hashlib.sha256)
