"""The tables with data of a conversation or a turn, and what happens to their rows on deletion and erasure.

Each table with rows of tenants is listed here or in `NOT_OF_CONVERSATIONS`; a test compares both with the database. An
erasure ends only when the conditions of all tables find no rows (`erasures.store`).
Index entries and vectors are found by the id of their source: those of a memory are deleted with the memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class DataTable:
    """One table. `of_conversation` and `of_turn` are conditions that find its rows of a conversation or a turn ($2).

    `of_owner` ($2, in project $3 or all) and `of_actor` ($2, in project $3, among conversations that were written to
    since $4; $5 is the name as a subject of facts) find rows that an erasure must not leave; None: rows of this table
    are found by the others'. `on_erase`: what happens to a row when its turn is erased. `tombstone`: only the content
    is deleted. `kept`: the row has no content of the turn. `withdrawn`: data derived from the turn is deleted: a title
    or a summary completely, highlights line by line. Deleting a conversation deletes its rows in all tables. `export`:
    the type of the record of an export that has the row; None if the row is derived from others, or open.
    """

    owner: Literal["conversations", "memory", "index"]
    of_conversation: str
    of_turn: str | None
    on_erase: Literal["tombstone", "delete", "kept", "withdrawn"]
    export: str | None
    of_owner: str | None = None
    of_actor: str | None = None


@dataclass(frozen=True, slots=True)
class OtherTable:
    """A table with rows of tenants that no conversation has, and the reason.

    `on_tenant_erasure`: whether the erasure of its tenant deletes its rows; `kept` rows have no personal data, or are
    emptied of it. `of_owner` and `export`: as in `DataTable`.
    """

    reason: str
    on_tenant_erasure: Literal["delete", "kept"]
    of_owner: str | None = None
    export: str | None = None


_WRITTEN_TO = """in (
    select c.id from conversations c where c.tenant_id = $1 and ($3::text is null or c.project = $3) and (
        c.updated_at >= $4::timestamptz or exists (
            select from conversation_heads h
            where h.tenant_id = $1 and h.conversation_id = c.id and h.updated_at >= $4::timestamptz
        ) or exists (select from turn_streams s where s.tenant_id = $1 and s.conversation_id = c.id)
    )
)"""
_NAMED = "jsonb_build_array(jsonb_build_object('actor', $2::text))"
_OWNED = "owner = $2::text and ($3::text is null or project = $3)"
_OWNED_CONVERSATION = """conversation_id in (
    select c.id from conversations c
    where c.tenant_id = $1 and c.owner = $2::text and ($3::text is null or c.project = $3)
)"""
REGISTRY: Final[Mapping[str, DataTable]] = MappingProxyType(
    {
        "conversations": DataTable(
            "conversations",
            "id = $2",
            None,
            "withdrawn",
            "conversation",
            of_owner=_OWNED,
            of_actor=f"(participants @> {_NAMED} or tools @> {_NAMED}) and id {_WRITTEN_TO}",
        ),
        "conversation_heads": DataTable("conversations", "conversation_id = $2", None, "kept", "conversation"),
        "turns": DataTable(
            "conversations",
            "conversation_id = $2",
            "id = $2",
            "tombstone",
            "turn",
            of_owner=_OWNED_CONVERSATION,
            # tombstones of erased actors have the name `erased`, which may be that of another actor
            of_actor=f"actor = $2::text and (actor <> 'erased' or erased_at is null) and conversation_id {_WRITTEN_TO}",
        ),
        "turn_streams": DataTable("conversations", "conversation_id = $2", "turn_id = $2", "delete", None),
        "turn_chunks": DataTable(
            "conversations",
            "turn_id in (select s.turn_id from turn_streams s where s.tenant_id = $1 and s.conversation_id = $2)",
            "turn_id = $2",
            "delete",
            None,
        ),
        # the input of a response lies in turns; its request goes with the turn of its answer
        "responses": DataTable("conversations", "conversation_id = $2", "turn_id = $2", "delete", "turn"),
        "summaries": DataTable(
            "conversations",
            "conversation_id = $2",
            None,
            "withdrawn",
            "summary",
            of_actor=f"actors @> to_jsonb($2::text) and conversation_id {_WRITTEN_TO}",
        ),
        "facts": DataTable(
            "memory",
            "conversation_id = $2",
            None,
            "withdrawn",
            "fact",
            of_owner=_OWNED,
            of_actor="subject_key = $5::text and ($3::text is null or project = $3)",
        ),
        "fact_evidence": DataTable(
            "memory",
            "conversation_id = $2",
            "turn_id = $2",
            "delete",
            "fact",
            of_actor=f"actor = $2::text and conversation_id {_WRITTEN_TO}",
        ),
        "fact_decisions": DataTable(
            "memory",
            "id in (select s.decision_id from fact_decision_sources s"
            " where s.tenant_id = $1 and s.conversation_id = $2)",
            None,
            "withdrawn",
            "fact_decision",
            of_owner="owner = $2::text and $3::text is null",
        ),
        "fact_decision_sources": DataTable("memory", "conversation_id = $2", "turn_id = $2", "delete", "fact_decision"),
        "index_entries": DataTable(
            "index",
            "conversation_id = $2",
            "kind = 'turn' and coalesce(source_id, entry_id) = $2",
            "delete",
            None,
            # the entry of a memory has an empty project
            of_owner=_OWNED,
            of_actor=f"actor = $2::text and conversation_id {_WRITTEN_TO}",
        ),
        "vectors": DataTable(
            "index",
            "entry_id in (select e.entry_id from index_entries e where e.tenant_id = $1 and e.conversation_id = $2)",
            "entry_id in (select e.entry_id from index_entries e"
            " where e.tenant_id = $1 and e.kind = 'turn' and coalesce(e.source_id, e.entry_id) = $2)",
            "delete",
            None,
        ),
    }
)
NOT_OF_CONVERSATIONS: Final[Mapping[str, OtherTable]] = MappingProxyType(
    {
        "memories": OtherTable(
            "content of an agent's own, across conversations; goes by its id, its owner or its time, with its index"
            " entry and vectors",
            "delete",
            of_owner="owner = $2::text and $3::text is null",
            export="memory",
        ),
        "idempotency_records": OtherTable(
            "HMACs of key and request, and ids of what it made, no content; swept after a day. Stays when what it made"
            " is deleted, so that a late repeat does not make it again",
            "delete",
        ),
        "model_usage": OtherTable(
            "how many tokens a tenant's calls to chat models took in a day, no content but a model's name", "delete"
        ),
        "jobs": OtherTable(
            "ids of what is due later, no content; a job whose turn is gone or erased finds nothing to do and ends. The"
            " erasure of its tenant leaves those of open erasures",
            "delete",
        ),
        "operations": OtherTable(
            "what a request started, for a day after its end; its parameters are removed at the end, and its result has"
            " counts and ids. The erasure of its tenant leaves open erasures of tenants, which name ids only",
            "delete",
        ),
        "webhooks": OtherTable("where a tenant wants its events sent, no content", "delete"),
        "webhook_deliveries": OtherTable(
            "ids of what happened and whether a receiver got it, no content: what is sent is read when it is sent, so"
            " nothing erased is sent later; deleted after some days",
            "delete",
        ),
        "webhook_lanes": OtherTable("ids of conversations with pending deliveries, no content", "delete"),
        "import_chunks": OtherTable(
            "uploaded lines of imports; deleted when the import ends, or a day after an upload that was broken off",
            "delete",
        ),
        "index_removals": OtherTable("ids of index entries deleted lately, no content; deleted after an hour", "kept"),
        "audit_unsealed": OtherTable("what was done to which ids, no content; it stays when they are deleted", "kept"),
        "audit_entries": OtherTable("the same, in hash chains; deleted by the retention of the audit only", "kept"),
        "audit_days": OtherTable("ends of the hash chains of days: numbers and hashes", "kept"),
        "erasures": OtherTable("receipts of erasures: counts, and a keyed hash of the subject", "kept"),
        "api_keys": OtherTable(
            "who may ask; the erasure of an owner removes the name from restrictions, that of a tenant deletes them and"
            " renames the key that it was asked with",
            "kept",
            of_owner="$2::text = any(owners) and $3::text is null",
        ),
        "tenants": OtherTable("the tenant itself; its erasure leaves its id, without its name", "kept"),
        "tenant_limits": OtherTable("what an operator lets a tenant use, no content", "kept"),
        "tenant_usage": OtherTable("how many turns, bytes and vectors a tenant stored in a day, no content", "delete"),
    }
)
