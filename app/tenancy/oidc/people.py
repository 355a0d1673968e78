"""Authentication of people by access tokens of an OpenID Connect issuer.

Invariants: a token is accepted only with a signature of a key of the issuer, by an algorithm in the settings, and for
an audience in the settings. Other members of its header are not used. No claim is logged; entries of the audit have a
keyed hash of issuer and subject, which differs between tenants.
"""

import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import Final, cast
from uuid import UUID

import jwt

from app.core.errors import Unauthenticated
from app.core.ids import KeyId
from app.formats.schemas import JsonObject
from app.providers.service import IssuerKeys, SigningKey
from app.settings.oidc import OidcSettings
from app.tenancy.oidc.claims import Identity, identity_of

MAX_TOKEN_CHARACTERS: Final = 16 * 1024
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_LEEWAY_S: Final = 30
"""Difference of the clocks of the issuer and of this process; machines with synchronised clocks differ by less."""
_REQUIRED: Final = ("exp", "iss", "sub", "aud")
# values of Keycloak's claim `typ`: tokens that are not for an API
_OTHER_USES: Final = frozenset({"ID", "Refresh", "Offline", "Logout"})
_ERRORS: Final = (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError)


class People:
    """Verifies access tokens of the issuer in the settings."""

    def __init__(self, settings: OidcSettings, issuer: str, *, secret: bytes) -> None:
        """`secret` is for the ids of people."""
        self._settings = settings
        self._issuer = issuer
        self._secret = secret
        self._keys = IssuerKeys(settings, issuer)

    async def close(self) -> None:
        """Stop fetching keys."""
        await self._keys.close()

    async def verify(self, token: str) -> Identity:
        """Return the identity of a token's holder.

        Raises Unauthenticated, and Unavailable without the issuer's keys.
        """
        if len(token) > MAX_TOKEN_CHARACTERS or _FORM.fullmatch(token) is None:
            raise _invalid()
        algorithm, key_id = self._header(token)
        key = await self._keys.find(key_id)
        if key is None or not key.fits(algorithm):
            raise _invalid()
        return identity_of(self._claims(token, key, algorithm), self._settings)

    def id_of(self, identity: Identity) -> KeyId:
        """Return the id of a person in the audit and for rates, the same for all tokens of the person."""
        name = f"{self._issuer}\0{identity.subject}".encode()
        digest = hmac.digest(self._secret, identity.tenant_id.bytes + name, hashlib.sha256)
        return KeyId(UUID(bytes=digest[:16], version=5))

    def left_s(self, identity: Identity) -> float:
        """Return the seconds for which a token is valid."""
        return (identity.expires_at - datetime.now(UTC)).total_seconds() + _LEEWAY_S

    def _header(self, token: str) -> tuple[str, str | None]:
        """Return the algorithm and the key id that an unverified header names."""
        try:
            header = cast("JsonObject", jwt.get_unverified_header(token))
        except _ERRORS:
            raise _invalid() from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        # an extension that must be understood (RFC 7515, 4.1.11) is one that is not
        if algorithm not in self._settings.oidc_algorithms or "crit" in header:
            raise _invalid()
        return str(algorithm), None if key_id is None else str(key_id)

    def _claims(self, token: str, key: SigningKey, algorithm: str) -> JsonObject:
        try:
            claims = cast(
                "JsonObject",
                jwt.decode(
                    token,
                    key.key,
                    algorithms=[algorithm],
                    audience=self._settings.oidc_audience,
                    issuer=self._issuer,
                    leeway=_LEEWAY_S,
                    options={"require": list(_REQUIRED)},
                ),
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("token_expired", "This access token has expired; get another.") from None
        except _ERRORS:
            raise _invalid() from None
        if claims.get("typ") in _OTHER_USES:
            raise _invalid()
        return claims


def _invalid() -> Unauthenticated:
    return Unauthenticated("unauthenticated", "Invalid access token.")
