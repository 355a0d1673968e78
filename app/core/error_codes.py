"""The catalogue of error codes: each stable code with the sentence that names its case in general.

The sentence is the `title` of a problem and stands in `docs/errors.md`; tests keep the two and the code alike.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ERROR_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "admin_key_file_invalid": "The admin key file does not hold an API key.",
        "agent_id_required": "Memories belong to an agent, and none is named.",
        "body_too_large": "The request body is larger than this server takes.",
        "bootstrap_key_invalid": "TURNKEEP_BOOTSTRAP_KEY has not the form of an API key.",
        "budget_too_small": "What must be in the context does not fit the token budget.",
        "conversation_advanced": "The conversation has turns that the caller did not expect.",
        "conversation_conflict": "The id and the external_id belong to two different conversations.",
        "cursor_invalid": "The cursor does not belong to this list.",
        "database_unavailable": "The database does not answer.",
        "duplicate_key": "An object in the body names a member twice.",
        "embedded_postgres_busy": "Another process holds the embedded Postgres for too long.",
        "embedded_postgres_data": "The data directory of the embedded Postgres is not usable.",
        "embedded_postgres_failed": "The embedded Postgres did not start, or did not stop.",
        "embedded_postgres_missing": "The binaries of the embedded Postgres are not installed.",
        "embedded_postgres_place": "There is no place where the embedded Postgres can run.",
        "embedded_postgres_unsupported": "The embedded Postgres does not run on this processor or system.",
        "embedded_postgres_user": "There is no user that the embedded Postgres could run as.",
        "embedded_postgres_version": "The data directory belongs to another major version of Postgres.",
        "embedder_assets_damaged": "The files of the embedding model are not the expected ones.",
        "embedder_assets_missing": "The files of the embedding model are missing.",
        "embedder_closed": "The embedder has been closed.",
        "embedder_failed": "The embedder failed.",
        "embedder_invalid": "The embedding endpoint answered with something that is no embedding.",
        "embedder_overloaded": "The embedder has more work than it can take.",
        "embedder_rate_limited": "The embedding endpoint takes no more requests for now.",
        "embedder_unavailable": "The embedding endpoint cannot be used.",
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
        "port_taken": "The port cannot be listened on.",
        "postgres_unusable": "The Postgres at hand cannot be used.",
        "rate_limited": "Too many requests.",
        "resource_busy": "Another request is changing the same thing right now.",
        "route_not_found": "There is nothing at this path.",
        "schema_outdated": "The database schema is not that of this release.",
        "text_not_storable": "A text in the body holds a character that cannot be stored.",
        "text_too_large": "A text is larger than this server takes.",
        "token_ranks_unusable": "The files of the token counter are missing or damaged.",
        "tool_call_unknown": "A tool result answers a call that was not made.",
        "turn_id_conflict": "A turn with this id exists and says something else.",
        "unauthenticated": "There is no API key, or it does not hold.",
        "unsupported_media_type": "The body is not declared as JSON.",
    }
)
