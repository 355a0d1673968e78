"""What a conversation is created or changed with, checked and completed. Pure."""

import json

from app.conversations.schemas import CompactionIn
from app.core.errors import FieldError, Invalid
from app.formats.schemas import JsonObject


def require_small(metadata: JsonObject, *, at_most: int) -> None:
    """Raise Invalid for metadata of more bytes, as JSON in UTF-8."""
    if len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()) > at_most:
        raise Invalid(
            "invalid_request",
            "The metadata is too large.",
            fields=[FieldError("/metadata", f"over {at_most} bytes as JSON")],
        )


def compaction_policy(given: CompactionIn, base: JsonObject) -> JsonObject:
    """A policy of compaction with what was given changed; null clears the model."""
    changed = given.model_dump(exclude_none=True)
    if "summarizer_model" in given.model_fields_set:
        changed["summarizer_model"] = given.summarizer_model
    return {**base, **changed}
