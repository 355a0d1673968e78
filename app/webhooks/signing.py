"""Signatures of deliveries, by the specification Standard Webhooks (symmetric, `v1`). Pure.

A secret is derived from the secret of the installation, so the database has none, and a rotation changes one number.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from app.core.ids import TenantId, format_id

_PREFIX = "whsec_"


def secret_key(root: bytes, tenant_id: TenantId, webhook_id: UUID, version: int) -> bytes:
    """Return the key of a webhook's secret (32 bytes)."""
    return hmac.digest(root, tenant_id.bytes + webhook_id.bytes + version.to_bytes(8, "big"), hashlib.sha256)


def secret_text(key: bytes) -> str:
    """Return a secret as receivers get it: `whsec_` and base 64."""
    return _PREFIX + base64.b64encode(key).decode()


def signed_headers(event_id: UUID, body: bytes, keys: Sequence[bytes], *, at: datetime) -> dict[str, str]:
    """Return the headers of one attempt: the id of the event, the time, and a signature by each key."""
    message_id, timestamp = format_id(event_id), str(int(at.timestamp()))
    message = b".".join((message_id.encode(), timestamp.encode(), body))
    signatures = (base64.b64encode(hmac.digest(key, message, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
