"""The signing keys of an OpenID Connect issuer, fetched asynchronously and kept in memory.

Invariants: one fetch runs at a time, and at most one starts in `_REFRESH_INTERVAL_S`, for any key ids in tokens.
A key id is only compared, never used as a path or URL. While the issuer does not answer, the keys of the last fetch are
used for `_MAX_AGE_S` and `_MAX_STALE_S`. Nothing of an answer is logged.
"""

import asyncio
import contextvars
import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias, cast
from urllib.parse import urlsplit

import httpx2
import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from pydantic import JsonValue

from app.core.errors import Unavailable
from app.core.telemetry import get_logger
from app.formats.schemas import JsonObject
from app.settings.oidc import OidcSettings

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_DISCOVERY: Final = "/.well-known/openid-configuration"
_MAX_ANSWER_BYTES: Final = 256 * 1024
_MAX_AGE_S: Final = 3600.0
"""Age from which the keys are fetched again: a key that the issuer has withdrawn is accepted for so long."""
_MAX_STALE_S: Final = 86_400.0
"""Time for which older keys are used while the issuer does not answer: an outage of a night refuses no request."""
_REFRESH_INTERVAL_S: Final = 10.0
"""Shortest time between two fetches, which anyone can cause with a token that names an unknown key."""
_TIMEOUT_S: Final = 5.0
"""Time for each step of a request; requests with tokens wait for a first fetch."""
_MAX_KEYS: Final = 100
_MIN_RSA_BITS: Final = 2048
_OK: Final = 200
_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer. `algorithm`: the only one that it is for, if the issuer says so."""

    key: PublicKey
    algorithm: str | None

    def fits(self, algorithm: str) -> bool:
        """Return whether a signature of this algorithm can be checked with the key."""
        if self.algorithm is not None and self.algorithm != algorithm:
            return False
        if isinstance(self.key, RSAPublicKey):
            return algorithm[:2] in {"RS", "PS"}
        if isinstance(self.key, EllipticCurvePublicKey):
            return _CURVES.get(algorithm) == self.key.curve.name
        return algorithm == "EdDSA"


class InvalidAnswerError(Exception):
    """The issuer did not answer as it should."""


class IssuerKeys:
    """The keys of the issuer in the settings."""

    def __init__(self, settings: OidcSettings, issuer: str) -> None:
        self._settings = settings
        self._issuer = issuer
        self._keys: Mapping[str | None, SigningKey] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._log = get_logger()

    async def find(self, key_id: str | None) -> SigningKey | None:
        """Return the key of this id, or the only key for a token without one; None if the issuer has no such key.

        Raises Unavailable if the keys are not known, because the issuer does not answer.
        """
        if self._is_older_than(_MAX_AGE_S + _MAX_STALE_S):
            await self._fetch()
            if self._is_older_than(_MAX_AGE_S + _MAX_STALE_S):
                detail = "The issuer of access tokens does not answer; use an API key, or send the request again."
                raise Unavailable("issuer_unavailable", detail, retry_after_s=5)
        elif self._is_older_than(_MAX_AGE_S):
            self._begin()  # the present keys are used meanwhile
        key = self._find(key_id)
        if key is None and self._may_fetch():  # a new key of the issuer
            await self._fetch()
            key = self._find(key_id)
        return key

    async def close(self) -> None:
        """Stop a fetch that runs."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _find(self, key_id: str | None) -> SigningKey | None:
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    def _is_older_than(self, age_s: float) -> bool:
        """Return whether the keys are older, or were never fetched."""
        return self._fetched_at is None or monotonic() - self._fetched_at > age_s

    def _may_fetch(self) -> bool:
        if self._fetching is not None:
            return True
        return self._tried_at is None or monotonic() - self._tried_at >= _REFRESH_INTERVAL_S

    def _begin(self) -> "asyncio.Task[None] | None":
        """Return the fetch that runs, after beginning one if none does; None so soon after the last one."""
        if self._fetching is None and self._may_fetch():
            self._tried_at = monotonic()
            # a context of its own: it belongs to no request
            self._fetching = asyncio.create_task(self._fetch_now(), context=contextvars.Context())
        return self._fetching

    async def _fetch(self) -> None:
        fetching = self._begin()
        if fetching is not None:
            await asyncio.shield(fetching)  # a caller that leaves does not stop it for the others

    async def _fetch_now(self) -> None:
        try:
            async with asyncio.timeout(2 * _TIMEOUT_S):
                self._keys = await self._read_keys()
            self._fetched_at = monotonic()
        except (httpx2.HTTPError, httpx2.InvalidURL, InvalidAnswerError, TimeoutError, OSError, ValueError) as error:
            self._log.warning("oidc.keys_not_fetched", error_type=type(error).__name__)
        finally:
            self._fetching = None

    async def _read_keys(self) -> Mapping[str | None, SigningKey]:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False) as client:
            discovered = await self._read(client, self._issuer.rstrip("/") + _DISCOVERY)
            url = discovered.get("jwks_uri")
            if discovered.get("issuer") != self._issuer or not isinstance(url, str):
                raise InvalidAnswerError
            scheme = urlsplit(url).scheme
            if scheme != "https" and not (scheme == "http" and self._settings.oidc_allow_http):
                raise InvalidAnswerError
            keys = read_keys(await self._read(client, url))
        if not keys:
            raise InvalidAnswerError
        return keys

    async def _read(self, client: httpx2.AsyncClient, url: str) -> JsonObject:
        # not compressed, so that a short answer cannot be a large one in memory
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with client.stream("GET", url, headers=headers) as response:
            if response.status_code != _OK or response.headers.get("content-encoding", "identity") != "identity":
                raise InvalidAnswerError
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_ANSWER_BYTES:
                    raise InvalidAnswerError
        try:
            answer: object = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidAnswerError from error
        if not isinstance(answer, dict):
            raise InvalidAnswerError
        return cast("JsonObject", answer)


def read_keys(answer: JsonObject) -> dict[str | None, SigningKey]:
    """Return the usable signing keys in a key set by their ids. Secret, weak and other keys are left out."""
    listed = answer.get("keys")
    keys: dict[str | None, SigningKey] = {}
    for item in listed[:_MAX_KEYS] if isinstance(listed, list) else ():
        key = _key(item)
        if key is not None and isinstance(item, dict):
            key_id = item.get("kid")
            keys[key_id if isinstance(key_id, str) else None] = key
    return keys


def _key(item: JsonValue) -> SigningKey | None:
    if not isinstance(item, dict) or item.get("use", "sig") != "sig":
        return None
    try:
        key: object = jwt.PyJWK(item).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        return None
    algorithm = item.get("alg")
    return SigningKey(key, algorithm if isinstance(algorithm, str) else None)
