"""The fields of facts, their evidence and memories, in the order of their records."""

from typing import Final

from app.core.entity_fields import EntityField, Form

FACT: Final = (
    EntityField("id", Form.ID),
    EntityField("owner", is_content=True, is_input=True, omits_empty=True),
    EntityField("subject_key", is_content=True),
    EntityField("predicate", is_content=True, is_input=True),
    EntityField("subject", is_content=True, is_input=True),
    EntityField("object", is_content=True, is_input=True),
    EntityField("conversation_id", Form.ID, is_input=True),
    EntityField("project", is_input=True, omits_empty=True),
    EntityField("confidence", is_input=True),
    EntityField("tier", is_input=True),
    EntityField("valid_from", Form.TIME, is_input=True),
    EntityField("valid_to", Form.TIME, is_input=True),
    EntityField("recorded_at", Form.TIME),
    EntityField("invalidated_at", Form.TIME),
    EntityField("invalidated_by", Form.ID),
    EntityField("retracted", omits_empty=True),
    EntityField("undone", omits_empty=True),
    EntityField("expires_at", Form.TIME),
    EntityField("evidence_count", is_recorded=False),
    EntityField("listed", is_recorded=False),
    EntityField("due_at", Form.TIME, is_recorded=False),
)
EVIDENCE: Final = (
    EntityField("turn_id", Form.ID),
    EntityField("conversation_id", Form.ID),
    EntityField("rev"),
    EntityField("project", omits_empty=True),
    EntityField("actor", is_content=True),
    EntityField("content_hash", Form.HASH),
    EntityField("object_key", is_content=True),
    EntityField("object", is_content=True),
    EntityField("at", Form.TIME),
    EntityField("ends_at", Form.TIME),
    EntityField("position"),
    EntityField("confidence"),
    EntityField("tier"),
    EntityField("denies", omits_empty=True),
    EntityField("replaces", omits_empty=True),
    EntityField("stated_by"),
)
MEMORY: Final = (
    EntityField("id", Form.ID),
    EntityField("agent_id"),
    EntityField("owner", is_content=True, is_input=True),
    EntityField("content", is_content=True, is_input=True),
    EntityField("metadata", Form.JSON, is_content=True, is_input=True, omits_empty=True),
    EntityField("created_at", Form.TIME),
    EntityField("expires_at", Form.TIME),
    EntityField("repeated_at", Form.TIMES, omits_empty=True),
)
