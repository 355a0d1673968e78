"""The text form of API keys: `tk_<tenant ULID>_<key ULID>_<43 characters, 256 random bits>`.

Pure. The key contains the tenant, so that its lookup needs no query across tenants.
"""

import hmac
import re
import secrets
from dataclasses import dataclass

from app.core.ids import KeyId, TenantId, format_id, new_uuid, parse_id

_FORM = re.compile(r"tk_([0-9A-HJKMNP-TV-Z]{26})_([0-9A-HJKMNP-TV-Z]{26})_([A-Za-z0-9_-]{43})", re.ASCII)
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyText:
    """A parsed API key. `secret` never leaves memory unhashed."""

    tenant_id: TenantId
    key_id: KeyId
    secret: str

    def __str__(self) -> str:
        return f"tk_{format_id(self.tenant_id)}_{format_id(self.key_id)}_{self.secret}"

    def __repr__(self) -> str:
        return f"KeyText(tk_{format_id(self.tenant_id)}_{format_id(self.key_id)}_…)"


def generate_key(tenant_id: TenantId | None = None) -> KeyText:
    """Return a new key, of a new tenant unless one is given."""
    tenant = tenant_id or TenantId(new_uuid())
    return KeyText(tenant, KeyId(new_uuid()), secrets.token_urlsafe(_SECRET_BYTES))


def parse_key(text: str) -> KeyText | None:
    """Parse a key's text; return None for any other text."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    try:
        return KeyText(TenantId(parse_id(match[1])), KeyId(parse_id(match[2])), match[3])
    except ValueError:
        return None


def key_hmac(pepper: bytes, key: KeyText) -> bytes:
    """Return the stored hash of a key (32 bytes). The secret has 256 random bits, so a slow hash adds nothing."""
    return key_text_hmac(pepper, str(key))


def key_text_hmac(pepper: bytes, text: str) -> bytes:
    """Return the hash of a text that may be a key: for the text of a key, the same as `key_hmac`."""
    return hmac.digest(pepper, b"api-key:" + text.encode(errors="surrogatepass"), "sha256")
