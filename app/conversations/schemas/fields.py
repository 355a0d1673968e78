"""The fields of conversations, turns, summaries and responses, in the order of their records.

What a new field of a turn needs besides is in ARCHITECTURE.md.
"""

from typing import Final

from app.core.entity_fields import EntityField, Form

TURN: Final = (
    EntityField("id", Form.ID),
    EntityField("conversation_id", Form.ID, is_recorded=False),
    EntityField("seq"),
    EntityField("position"),
    EntityField("rev"),
    EntityField("kind", is_input=True, is_hashed=True),
    EntityField("actor", is_input=True, is_hashed=True),
    EntityField("role", is_input=True, is_hashed=True),
    EntityField("content", Form.JSON, is_content=True, is_input=True, is_hashed=True),
    EntityField("tool_calls", Form.FILLED_JSON, is_content=True, is_input=True, is_hashed=True),
    EntityField("tool_call_id", is_content=True, is_input=True, is_hashed=True),
    EntityField("tool_results", Form.FILLED_JSON, is_content=True, is_input=True, is_hashed=True),
    EntityField("usage", Form.JSON, is_content=True, is_input=True, is_hashed=True),
    EntityField("content_tokens"),
    EntityField("model", is_content=True, is_input=True, is_hashed=True),
    EntityField("adapter", is_content=True, is_input=True, is_hashed=True),
    EntityField("metadata", Form.FILLED_JSON, is_content=True, is_input=True, is_hashed=True),
    EntityField("status"),
    EntityField("superseded_by", Form.ID),
    EntityField("supersedes", Form.ID, is_hashed=True),
    EntityField("origin_turn_id", Form.ID),
    EntityField("occurred_at", Form.TIME),  # hashed only if a caller gave it
    EntityField("created_at", Form.TIME),
    EntityField("committed_at", Form.TIME),
    EntityField("erased_at", Form.TIME),
    EntityField("salt", Form.HASH),
    EntityField("content_hash", Form.HASH),
    EntityField("chain_hash", Form.HASH),
    EntityField("index_state", is_recorded=False),
)
TURN_INPUTS: Final = tuple(field for field in TURN if field.is_input)
HASHED: Final = tuple(field for field in TURN if field.is_hashed)
ERASED_COLUMNS: Final = tuple(field.column for field in TURN if field.is_content)
"""Columns of a turn that erasure and retention empty, besides the salt."""
JSON_COLUMNS: Final = tuple(field.column for field in TURN if field.form in {Form.JSON, Form.FILLED_JSON})
"""Columns of a turn with JSON, which may be large."""

CONVERSATION: Final = (
    EntityField("id", Form.ID),
    EntityField("project", is_input=True),
    EntityField("external_id", is_content=True, is_input=True),
    EntityField("owner", is_content=True, is_input=True),
    EntityField("title", is_content=True, is_input=True),
    EntityField("derived_title", name="derived_title.text", is_content=True),
    EntityField("derived_title_source", name="derived_title.source", is_content=True),
    EntityField("derived_title_turn_ids", Form.IDS, name="derived_title.turn_ids"),
    EntityField("derived_title_model", name="derived_title.model"),
    EntityField("participants", Form.JSONB, is_content=True, is_input=True, omits_empty=True),
    EntityField("tools", Form.JSONB, is_content=True, is_input=True, omits_empty=True),
    EntityField("metadata", Form.JSONB, is_content=True, is_input=True, omits_empty=True),
    EntityField("retention", is_input=True),
    EntityField("compaction", Form.JSONB, is_input=True, omits_empty=True),
    EntityField("facts", Form.JSONB, is_input=True, omits_empty=True),
    EntityField("ttl_s", is_input=True),
    EntityField("expires_at", Form.TIME),
    EntityField("created_at", Form.TIME),
    EntityField("updated_at", Form.TIME),
    EntityField("active_at", Form.TIME),
    EntityField("forked_from", Form.ID),
    EntityField("chain_start", Form.HASH),
    EntityField("archived", is_input=True, omits_empty=True),
    EntityField("pinned", is_input=True, omits_empty=True),
    EntityField("token_epoch"),
    EntityField("last_seq"),
    EntityField("chain_hash", Form.HASH, name="head_hash"),
    EntityField("rev"),
    EntityField("summarized_through", Form.ID, name="summarized.turn_id"),
    EntityField("summarized_position", name="summarized.position"),
    EntityField("summarized_turns", name="summarized.turns"),
    EntityField("summarized_tokens", name="summarized.tokens"),
    EntityField("erased_position"),
    EntityField("facts_seq"),
    EntityField("facts_rev"),
    EntityField("facts_held"),
)
"""Columns of a conversation and of its head."""

SUMMARY: Final = (
    EntityField("id", Form.ID),
    EntityField("kind"),
    EntityField("level"),
    EntityField("from_position"),
    EntityField("to_position"),
    EntityField("actors", omits_empty=True),
    EntityField("text"),
    EntityField("abstract"),
    EntityField("lines", omits_empty=True),
    EntityField("tokens"),
    EntityField("model"),
    EntityField("prompt_version"),
    EntityField("refused_for"),
    EntityField("doubtful", omits_empty=True),
    EntityField("replaced_by", Form.ID),
    EntityField("rev"),
    EntityField("created_at", Form.TIME),
)
"""`lines` and `doubtful` are lists in the columns and objects in records; `stores.summary_store` converts them."""

RESPONSE: Final = (
    EntityField("previous_turn_id", Form.ID),
    EntityField("input_turn_ids", Form.IDS),
    EntityField("owns_conversation"),
    EntityField("request", Form.JSON),
    EntityField("created_at", Form.TIME),
)
"""Members of the record of the turn of its answer."""
