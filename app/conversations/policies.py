"""Check and complete the policies and metadata of a conversation. Pure."""

import json
from collections.abc import Sequence
from uuid import UUID

from app.conversations.schemas.conversations import CompactionIn, FactsIn
from app.core.errors import FieldError, Invalid
from app.core.jobs import NewJob
from app.formats.schemas import JsonObject
from app.settings.conversations import ConversationSettings

FACTS_JOB = "conversation.facts"
FACTS_AGAIN_JOB = "conversation.facts_again"
"""Job kind: extract facts from new turns of a conversation; the subject is its id."""
WITHDRAW_JOB = "facts.withdraw"
"""Job kind: withdraw the evidence of superseded turns from the facts; the subjects are the turn ids."""
_TURNS_PER_JOB = 500
_NULLABLE = frozenset({"summarizer_model", "summaries"})


def require_small(metadata: JsonObject, *, maximum: int) -> None:
    """Raise Invalid if the metadata exceeds `maximum` bytes of JSON in UTF-8."""
    if len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()) > maximum:
        raise Invalid(
            "invalid_request",
            "The metadata is too large.",
            fields=[FieldError("/metadata", f"over {maximum} bytes as JSON")],
        )


def merge_patch(base: JsonObject, patch: JsonObject) -> JsonObject:
    """Return an object merged with a patch by RFC 7396: objects merge, null removes a member, other values replace."""
    merged = dict(base)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            before = merged.get(name)
            merged[name] = merge_patch(before if isinstance(before, dict) else {}, value)
        else:
            merged[name] = value
    return merged


def compaction_policy(policy: CompactionIn, base: JsonObject) -> JsonObject:
    """Return the compaction policy `base` with the fields of a request changed.

    An explicit null means the setting, for the fields whose setting is read at each compaction.
    """
    changed = policy.model_dump(exclude_none=True)
    for name in _NULLABLE & policy.model_fields_set:
        changed[name] = getattr(policy, name)
    return {**base, **changed}


def default_compaction(settings: ConversationSettings) -> JsonObject:
    """Return the compaction policy of a conversation that was created without one."""
    return {
        "strategy": "rolling",
        "trigger_turns": settings.compaction_trigger_turns,
        "trigger_tokens": settings.compaction_trigger_tokens,
        "summarizer_model": None,
        "summaries": None,
    }


def facts_policy(policy: FactsIn, base: JsonObject) -> JsonObject:
    """Return the facts policy `base` (extraction and redaction) with the fields of a request changed."""
    return {**base, **policy.model_dump(exclude_none=True)}


def default_facts(settings: ConversationSettings) -> JsonObject:
    """Return the facts policy of a conversation that was created without one."""
    return {"enabled": settings.fact_extraction_enabled, "redact": True}


def facts_job(conversation_id: UUID) -> NewJob:
    """Return the job that extracts facts from a conversation; at most one is queued at a time."""
    return NewJob(FACTS_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id))


def facts_again_job(conversation_id: UUID, *, delay_s: float) -> NewJob:
    """Return the job that reads the turns again that only rules have read; at most one is queued at a time."""
    return NewJob(FACTS_AGAIN_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id), delay_s=delay_s)


def withdraw_jobs(turn_ids: Sequence[UUID]) -> list[NewJob]:
    """Return the jobs that withdraw the evidence of these turns from the facts."""
    return [
        NewJob(WITHDRAW_JOB, subject_ids=turn_ids[start : start + _TURNS_PER_JOB])
        for start in range(0, len(turn_ids), _TURNS_PER_JOB)
    ]
