"""Rates of calls over HTTP: the class of each operation, and the headers of the answers.

The headers are those of draft-ietf-httpapi-ratelimit-headers-11.
"""

from collections.abc import Mapping
from typing import Final, cast

from fastapi import Request
from starlette.types import Scope

from app.tenancy.limits.schemas import RATE_STATE, RateStatus
from app.tenancy.schemas import Caller, RateClass
from app.tenancy.service import Tenancy

POLICY_HEADER: Final = "RateLimit-Policy"
STATE_HEADER: Final = "RateLimit"
RATE_CLASSES: Final[Mapping[str, RateClass]] = {
    "append_chunk": RateClass.CHUNK,
    "before_turn": RateClass.SEARCH,
    "build_context": RateClass.SEARCH,
    "export_conversation": RateClass.SEARCH,
    "export_data": RateClass.SEARCH,
    "list_memory_tree": RateClass.SEARCH,
    "look_up_owner": RateClass.SEARCH,
    "recall": RateClass.SEARCH,
    "recall_in_conversation": RateClass.SEARCH,
    "run_turn": RateClass.SEARCH,
    "search_conversations": RateClass.SEARCH,
    "verify_audit": RateClass.SEARCH,
    "search_facts": RateClass.READ,
    "search_turns": RateClass.READ,
    "filter_memories": RateClass.READ,
    "search_memories": RateClass.SEARCH,
    "ask_agent": RateClass.MODEL,
    "compact_conversation": RateClass.MODEL,
    "create_chat_completion": RateClass.MODEL,
    "create_embedding": RateClass.MODEL,
    "create_response": RateClass.MODEL,
    "extract_facts": RateClass.MODEL,
    "generate": RateClass.MODEL,
    "summarise_turns": RateClass.MODEL,
}
"""Classes of operations by name. Of the others, GET and HEAD are reads, and the rest are writes."""

_READS: Final = frozenset({"GET", "HEAD"})


def rate_class_of(request: Request) -> RateClass:
    """Return the class of a request."""
    return _class_of(request.scope)


def _class_of(scope: Scope) -> RateClass:
    operation = cast("str", getattr(scope.get("route"), "name", ""))
    return RATE_CLASSES.get(operation) or (RateClass.READ if scope["method"] in _READS else RateClass.WRITE)


def route_class(scope: Scope, path: str) -> str:
    """Return the class that a request is counted under: that of its rate, `mcp`, or `other` outside of the API."""
    if path.startswith(("/v1/", "/openai/v1/")):
        return _class_of(scope).value
    return "mcp" if path == "/mcp" else "other"


def take_rate(request: Request, tenancy: Tenancy, caller: Caller) -> None:
    """Count a request of a key. Raises RateLimited `rate_limited` if the key has used its rate."""
    status = tenancy.rates.take(caller, rate_class_of(request))
    if status is not None:
        cast("dict[str, object]", request.scope["state"])[RATE_STATE] = status
        status.require()


def rate_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers for the answer to a request: empty for one that no rate limits."""
    status = cast("Mapping[str, RateStatus]", scope["state"]).get(RATE_STATE)
    if status is None:
        return []
    state = f'"{status.policy.name.value}";r={status.left};t={status.retry_after_s or 1}'
    return [(b"ratelimit-policy", status.policy.field), (b"ratelimit", state.encode())]
