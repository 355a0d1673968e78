"""What a conversation is created or changed with, checked and completed. Pure."""

import json
from collections.abc import Sequence
from uuid import UUID

from app.conversations.schemas.conversations import CompactionIn, FactsIn
from app.core.errors import FieldError, Invalid
from app.core.jobs import NewJob
from app.formats.schemas import JsonObject

FACTS_JOB = "conversation.facts"
"""Look through what a conversation has new for facts; the subject is its id."""
WITHDRAW_JOB = "facts.withdraw"
"""Take out of the facts what superseded turns said; the subjects are their ids."""
_TURNS_PER_JOB = 500


def require_small(metadata: JsonObject, *, maximum: int) -> None:
    """Raise Invalid for metadata of more bytes, as JSON in UTF-8."""
    if len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()) > maximum:
        raise Invalid(
            "invalid_request",
            "The metadata is too large.",
            fields=[FieldError("/metadata", f"over {maximum} bytes as JSON")],
        )


def merge_patch(base: JsonObject, patch: JsonObject) -> JsonObject:
    """Merge a patch into an object by RFC 7396: objects are merged, null removes a member, all else is replaced."""
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


def compaction_policy(given: CompactionIn, base: JsonObject) -> JsonObject:
    """A policy of compaction with what was given changed; null clears the model."""
    changed = given.model_dump(exclude_none=True)
    if "summarizer_model" in given.model_fields_set:
        changed["summarizer_model"] = given.summarizer_model
    return {**base, **changed}


def facts_policy(given: FactsIn, base: JsonObject) -> JsonObject:
    """Whether facts are extracted and redacted, with what was given changed."""
    return {**base, **given.model_dump(exclude_none=True)}


def facts_job(conversation_id: UUID) -> NewJob:
    """The job that looks through a conversation for facts; one waits at a time."""
    return NewJob(FACTS_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id))


def withdraw_jobs(turn_ids: Sequence[UUID]) -> list[NewJob]:
    """The jobs that take what these turns said out of the facts."""
    return [
        NewJob(WITHDRAW_JOB, subject_ids=turn_ids[start : start + _TURNS_PER_JOB])
        for start in range(0, len(turn_ids), _TURNS_PER_JOB)
    ]
