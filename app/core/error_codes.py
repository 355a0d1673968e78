"""The catalogue of error codes: each stable code with the sentence that names its case in general.

The sentence is the `title` of a problem and stands in `docs/errors.md`; tests keep the two and the code alike.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ERROR_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "already_superseded": "The turn has already been replaced by another revision.",
        "assets_missing": "A file that Turnkeep ships with is missing or damaged.",
        "body_too_large": "The request body is larger than this server takes.",
        "budget_too_small": "What must be in the context does not fit the token budget.",
        "conversation_advanced": "The conversation has turns that the caller did not expect.",
        "cursor_invalid": "The cursor does not belong to this list.",
        "database_unavailable": "The database does not answer.",
        "duplicate_key": "An object in the body names a member twice.",
        "embedder_overloaded": "The embedder has more work than it can take.",
        "embedder_unavailable": "The embedder does not answer.",
        "forbidden": "The key does not have the scope that this needs.",
        "idempotency_mismatch": "The Idempotency-Key was used for another request.",
        "internal_error": "Something went wrong in the server.",
        "invalid_request": "The request breaks a rule.",
        "json_too_deep": "The body is nested too deeply.",
        "key_expired": "The API key has expired.",
        "key_revoked": "The API key has been revoked.",
        "malformed_json": "The body is not JSON in UTF-8.",
        "method_not_allowed": "This path does not take this method.",
        "not_found": "There is no such object.",
        "not_ready": "The server is not ready yet.",
        "number_not_interoperable": "A number in the body is beyond what JSON readers agree on.",
        "postgres_unusable": "The Postgres at hand cannot be used.",
        "rate_limited": "Too many requests.",
        "resource_busy": "Another request is changing the same thing right now.",
        "route_not_found": "There is nothing at this path.",
        "text_not_storable": "A text in the body holds a character that cannot be stored.",
        "token_ranks_unusable": "The files of the token counter are missing or damaged.",
        "turn_id_conflict": "A turn with this id exists and says something else.",
        "unauthenticated": "There is no API key, or it does not hold.",
        "unsupported_media_type": "The body is not declared as JSON.",
    }
)
