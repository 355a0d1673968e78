"""Other values of constants, for tests that would wait too long for them or need too much to reach them."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

_STREAMS: Final = "app.conversations.streams"
_LIMITS: Final = "app.routers.live.connection_limits"
_KEYS: Final = "app.providers.identity.issuer_keys"

CONSTANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "audit_flush_s": ("app.audit.service._FLUSH_S",),
    "compact_entry_bytes": ("app.index.search.resident._BYTES_PER_COMPACT_ENTRY",),
    "compared_candidates": ("app.index.search.segment_search._BEST",),
    "compared_entries": ("app.index.search.searcher._COMPARED",),
    "compared_vectors": ("app.index.search.segment_search._POOL",),
    "concurrent_calls_shared": ("app.tenancy.service._SHARED_CALLS",),
    "concurrent_calls_wait_s": ("app.tenancy.service._CALL_WAIT_S",),
    "concurrent_calls_waiting": ("app.tenancy.service._MAX_WAITING_CALLS",),
    "embeddings_concurrency": ("app.providers.remote.openai._CONCURRENCY",),
    "in_flight_wait_s": ("app.routers.http.bytes_in_flight._WAIT_S",),
    "job_poll_s": ("app.worker.runner._POLL_S",),
    "job_retry_base_s": ("app.core.jobs._RETRY_BASE_S",),
    "live_auth_timeout_s": ("app.routers.live.websocket.AUTH_TIMEOUT_S",),
    "live_bad_frames": (f"{_LIMITS}.BAD_FRAMES",),
    "live_bytes_per_s": (f"{_LIMITS}.BYTES_PER_S",),
    "live_check_s": ("app.conversations.live.service._CHECK_S",),
    "live_max_connections_per_token": (f"{_LIMITS}._MAX_PER_TOKEN",),
    "live_max_unauthenticated": (f"{_LIMITS}._MAX_UNAUTHENTICATED",),
    "live_queue_bytes": ("app.conversations.live.service._QUEUE_BYTES", f"{_LIMITS}.ANSWER_BYTES"),
    "live_recheck_s": (f"{_LIMITS}.RECHECK_S",),
    "live_stall_s": ("app.routers.http.uvicorn_protocols.STALL_S",),
    "max_answer_bytes": ("app.settings.conversations.LimitSettings.max_answer_bytes",),
    "max_open_turns": (f"{_STREAMS}.open._MAX_IN_TENANT",),
    "max_open_turns_per_conversation": (f"{_STREAMS}.open._MAX_IN_CONVERSATION",),
    "max_open_turns_per_token": (f"{_STREAMS}.open._MAX_PER_TOKEN",),
    "max_webhooks": ("app.webhooks.service._MAX_WEBHOOKS",),
    "oidc_keys_max_age_s": (f"{_KEYS}._MAX_AGE_S",),
    "oidc_keys_max_stale_s": (f"{_KEYS}._MAX_STALE_S",),
    "oidc_leeway_s": ("app.tenancy.oidc.people._LEEWAY_S",),
    "oidc_refresh_interval_s": (f"{_KEYS}._REFRESH_INTERVAL_S",),
    "oidc_timeout_s": (f"{_KEYS}._TIMEOUT_S",),
    "quota_flush_s": ("app.tenancy.limits.quotas._FLUSH_S",),
    "rate_share_s": ("app.tenancy.limits.rate_sharing._SHARE_S",),
    "recall_pool": ("app.index.service._MIN_POOL",),
    "standby_wait_s": ("app.core.database.servers._STANDBY_WAIT_S",),
    "stream_handover_s": (f"{_STREAMS}.service._HANDOVER_S",),
    "text_candidates": ("app.index.search.searcher._MATCHES",),
    "tier_fresh_vectors": ("app.index.search.ann_maintenance._FRESH_VECTORS",),
    "webhook_timeout_s": ("app.providers.receivers.webhook_sender.SEND_TIMEOUT_S",),
}
"""The modules' attributes, by the name that tests use."""


@contextmanager
def other_constants(**values: Any) -> Generator[dict[str, Any]]:
    """Set constants by name until the block ends; give the values that are no constants: those are settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CONSTANTS.keys() & values.keys():
            for attribute in CONSTANTS[name]:
                patch.setattr(attribute, values[name])
        yield {name: value for name, value in values.items() if name not in CONSTANTS}
