"""Hashes of receipts: pure.

A subject is hashed with a secret of the installation, so that a receipt does not reveal it, and who knows the subject
can check that a receipt is about it. The signature is an HMAC of the receipt as JSON without
spaces, names sorted.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from app.core.ids import TenantId
from app.formats.schemas import JsonObject
from app.governance.schemas import SubjectKind


@dataclass(frozen=True, slots=True)
class ErasureSubject:
    """What is erased: `name` is an owner, an actor, or the text of a UUID."""

    kind: SubjectKind
    name: str
    project: str | None = None

    def parameters(self) -> JsonObject:
        """Return the parameters of the operation."""
        return {"kind": self.kind.value, "name": self.name, "project": self.project}

    @classmethod
    def of(cls, parameters: Mapping[str, object]) -> "ErasureSubject":
        """Return the subject of an operation's parameters."""
        return cls(
            SubjectKind(str(parameters["kind"])), str(parameters["name"]), cast("str | None", parameters["project"])
        )


class ReceiptSigner:
    """Hashes subjects and signs receipts, with two secrets of the installation."""

    def __init__(self, *, subject_secret: bytes, receipt_secret: bytes) -> None:
        self._subject_secret = subject_secret
        self._receipt_secret = receipt_secret

    def subject_hash(self, tenant_id: TenantId, subject: ErasureSubject) -> bytes:
        """Return the keyed hash of a subject of a tenant (32 bytes)."""
        text = json.dumps([str(tenant_id), subject.kind.value, subject.project, subject.name])
        return hmac.digest(self._subject_secret, text.encode(), hashlib.sha256)

    def signature(self, receipt: JsonObject) -> bytes:
        """Return the signature of a receipt, given as JSON without its signature (32 bytes)."""
        text = json.dumps(receipt, sort_keys=True, separators=(",", ":"))
        return hmac.digest(self._receipt_secret, text.encode(), hashlib.sha256)
