"""Token counts of texts that contexts have again and again: summaries, system texts, recalled turns.

A count is found by a hash of tenant, tokenizer and text with a secret of the process, so no text stays in memory. With
the tenant in it, the time of a count does not tell whether another tenant has the same text.
"""

import os
import threading
from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from app.core.ids import TenantId
from app.formats.schemas import TokenCounter

_MAX_COUNTS: Final = 20_000
"""About 4 MB."""
_SHORT_TEXT: Final = 100
"""Counting fewer characters takes no longer than finding their count."""
_DIGEST_BYTES: Final = 16


class CountCache:
    """The newest counts of a process, of all tenants. Safe to share between threads."""

    def __init__(self, *, max_counts: int = _MAX_COUNTS) -> None:
        self._secret = os.urandom(_DIGEST_BYTES)
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._max_counts = max_counts
        self._lock = threading.Lock()

    def of(self, tenant_id: TenantId, counter: TokenCounter) -> "TenantCounter":
        """Return a counter that counts as the given one does, for the texts of one tenant."""
        return TenantCounter(self, tenant_id, counter)

    def count(self, tenant_id: TenantId, text: str, counter: TokenCounter) -> int:
        """Return the count of a text: the one that is known, or a new one."""
        if len(text) < _SHORT_TEXT:
            return counter.count(text)
        name = tenant_id.bytes + counter.name.encode() + b"\0"
        digest = blake2b(name + text.encode(), digest_size=_DIGEST_BYTES, key=self._secret).digest()
        with self._lock:
            stored = self._counts.get(digest)
            if stored is not None:
                self._counts.move_to_end(digest)
                return stored
        counted = counter.count(text)
        with self._lock:
            self._counts[digest] = counted
            if len(self._counts) > self._max_counts:
                self._counts.popitem(last=False)
        return counted


class TenantCounter:
    """A counter of the texts of one tenant."""

    def __init__(self, cache: CountCache, tenant_id: TenantId, counter: TokenCounter) -> None:
        self.name = counter.name
        self.exact = counter.exact
        self._cache = cache
        self._tenant_id = tenant_id
        self._counter = counter

    def count(self, text: str) -> int:
        """Return the count of a text, which is valid Unicode."""
        return self._cache.count(self._tenant_id, text, self._counter)
