"""The tables with data of a conversation or a turn, and what happens to their rows on deletion and erasure.

Each table with rows of tenants is listed here or in `NOT_OF_CONVERSATIONS`; a test compares both with the database.
Index entries and vectors are found by the id of their source: those of a memory are deleted with the memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class DataTable:
    """One table. `of_conversation` and `of_turn` are conditions that find its rows of a conversation or a turn ($2).

    `on_erase`: what happens to a row when its turn is erased. `tombstone`: only the content is deleted. `kept`: the row
    has no content of the turn. `withdrawn`: data derived from the turn is deleted: a title or a summary completely,
    highlights line by line. Deleting a conversation deletes its rows in all tables. `export`: the member of an export
    that contains the row; None if the row can be derived from the others.
    """

    owner: Literal["conversations", "memory", "index"]
    of_conversation: str
    of_turn: str | None
    on_erase: Literal["tombstone", "delete", "kept", "withdrawn"]
    export: str | None


REGISTRY: Final[Mapping[str, DataTable]] = MappingProxyType(
    {
        "conversations": DataTable("conversations", "id = $2", None, "withdrawn", "conversation"),
        "conversation_heads": DataTable("conversations", "conversation_id = $2", None, "kept", "conversation"),
        "turns": DataTable("conversations", "conversation_id = $2", "id = $2", "tombstone", "turn"),
        "turn_streams": DataTable("conversations", "conversation_id = $2", "turn_id = $2", "delete", None),
        "turn_chunks": DataTable(
            "conversations",
            "turn_id in (select s.turn_id from turn_streams s where s.tenant_id = $1 and s.conversation_id = $2)",
            "turn_id = $2",
            "delete",
            None,
        ),
        "summaries": DataTable("conversations", "conversation_id = $2", None, "withdrawn", "summary"),
        "facts": DataTable("memory", "conversation_id = $2", None, "withdrawn", "fact"),
        "fact_evidence": DataTable("memory", "conversation_id = $2", "turn_id = $2", "delete", "fact"),
        "fact_decisions": DataTable(
            "memory",
            "id in (select s.decision_id from fact_decision_sources s"
            " where s.tenant_id = $1 and s.conversation_id = $2)",
            None,
            "withdrawn",
            None,
        ),
        "fact_decision_sources": DataTable("memory", "conversation_id = $2", "turn_id = $2", "delete", None),
        "index_entries": DataTable("index", "conversation_id = $2", "entry_id = $2", "delete", None),
        "vectors": DataTable(
            "index",
            "entry_id in (select e.entry_id from index_entries e where e.tenant_id = $1 and e.conversation_id = $2)",
            "entry_id = $2",
            "delete",
            None,
        ),
    }
)
NOT_OF_CONVERSATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tenants": "the tenant itself",
        "api_keys": "who may ask",
        "model_usage": "how many tokens a tenant's calls to chat models took in a day, no content",
        "idempotency_records": "HMACs of key and request, and ids of what it made, no content; swept after a day."
        " Stays when what it made is deleted, so that a late repeat does not make it again",
        "memories": "content of an agent's own, across conversations; goes by its id or its time, with its index entry"
        " and vectors; exported as `memory`",
        "index_removals": "ids of index entries deleted lately, no content; deleted after an hour",
        "audit_unsealed": "what was done to which ids, no content; it stays when they are deleted",
        "audit_entries": "the same, in hash chains; deleted by the retention of the audit only",
        "audit_days": "ends of the hash chains of days: numbers and hashes",
        "operations": "what a request started, for a day after its end; its parameters are removed at the end, and its"
        " result has counts and ids",
        "jobs": "ids of what is due later, no content; a job whose turn is gone or erased finds nothing to do and ends",
    }
)
