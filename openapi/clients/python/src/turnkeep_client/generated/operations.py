"""Generated from openapi/openapi.json by `make clients`. Do not edit."""

from typing import Literal, Protocol, TypeAlias, cast
from urllib.parse import quote

from turnkeep_client.generated import types

Repeat: TypeAlias = Literal["safe", "key", "unsent"]
"""When a request may be sent again: always; with its Idempotency-Key; only if it was not executed."""
Value: TypeAlias = str | int | float | bool | list[str] | list[int] | None


class Transport(Protocol):
    """Sends a request, and returns the parsed JSON of its response, or bytes for other content."""

    def request(
        self,
        method: str,
        path: str,
        repeat: Repeat,
        *,
        query: dict[str, Value],
        headers: dict[str, str | None],
        body: object = None,
        is_bytes: bool = False,
    ) -> object: ...


class AsyncTransport(Protocol):
    """The same for asyncio."""

    async def request(
        self,
        method: str,
        path: str,
        repeat: Repeat,
        *,
        query: dict[str, Value],
        headers: dict[str, str | None],
        body: object = None,
        is_bytes: bool = False,
    ) -> object: ...


class Operations:
    """The operations of the API, by their ids."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list_conversations(
        self,
        *,
        project: str | None = None,
        external_id: str | None = None,
        owner: str | None = None,
        participant: str | None = None,
        archived: Literal["true", "false", "any"] | None = None,
        pinned: bool | None = None,
        trashed: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.ListedConversationPage:
        """List conversations, last written first, with previews of their first and last message."""
        return cast(
            "types.ListedConversationPage",
            self._transport.request(
                "GET",
                "/v1/conversations",
                "safe",
                query={
                    "project": project,
                    "external_id": external_id,
                    "owner": owner,
                    "participant": participant,
                    "archived": archived,
                    "pinned": pinned,
                    "trashed": trashed,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    def create_conversation(
        self, *, body: types.ConversationCreate, idempotency_key: str | None = None
    ) -> types.Conversation:
        """Create a conversation, or return the one with this `id` or `external_id` (200 instead of 201)."""
        return cast(
            "types.Conversation",
            self._transport.request(
                "POST", "/v1/conversations", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    def search_conversations(self, *, body: types.ConversationSearch) -> types.ListedConversationPage:
        """Find conversations by project, names, metadata, times and title, last written first."""
        return cast(
            "types.ListedConversationPage",
            self._transport.request("POST", "/v1/conversations/search", "safe", query={}, headers={}, body=body),
        )

    def get_conversation(self, conversation_id: str) -> types.Conversation:
        """Read one conversation with its counters. The header `ETag` is its `rev`, for `If-Match` of a change."""
        return cast(
            "types.Conversation",
            self._transport.request(
                "GET", f"/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def update_conversation(
        self, conversation_id: str, *, body: types.ConversationUpdate, if_match: str | None = None
    ) -> types.Conversation:
        """Change title, metadata, participants, ttl or policies. Omitted fields stay; null clears title and ttl_s."""
        return cast(
            "types.Conversation",
            self._transport.request(
                "PATCH",
                f"/v1/conversations/{quote(conversation_id, safe='')}",
                "unsent",
                query={},
                headers={"If-Match": if_match},
                body=body,
            ),
        )

    def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation with everything derived from it, also one in the trash. This cannot be undone."""
        self._transport.request(
            "DELETE", f"/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
        )

    def fork_conversation(
        self, conversation_id: str, *, body: types.ForkRequest, idempotency_key: str | None = None
    ) -> types.Conversation:
        """Create a conversation with copies of the live turns through one; its hash chain continues the parent's."""
        return cast(
            "types.Conversation",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/fork",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def verify_conversation(self, conversation_id: str) -> types.Verification:
        """Verify the hash chain: hash every turn again that is not erased, and report the first break."""
        return cast(
            "types.Verification",
            self._transport.request(
                "GET", f"/v1/conversations/{quote(conversation_id, safe='')}/verify", "safe", query={}, headers={}
            ),
        )

    def trash_conversation(self, conversation_id: str) -> types.Conversation:
        """Put a conversation into the trash: it is hidden everywhere, and deleted at `expires_at` unless it is restored."""
        return cast(
            "types.Conversation",
            self._transport.request(
                "POST", f"/v1/conversations/{quote(conversation_id, safe='')}/trash", "safe", query={}, headers={}
            ),
        )

    def restore_conversation(self, conversation_id: str) -> types.Conversation:
        """Take a conversation out of the trash, with everything that it had. One that is not there stays as it is."""
        return cast(
            "types.Conversation",
            self._transport.request(
                "POST", f"/v1/conversations/{quote(conversation_id, safe='')}/restore", "safe", query={}, headers={}
            ),
        )

    def list_turns(
        self,
        conversation_id: str,
        *,
        order: Literal["asc", "desc"] | None = None,
        after: int | None = None,
        before: int | None = None,
        since_rev: int | None = None,
        status: Literal["committed", "aborted"] | None = None,
        actors: list[str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        include_superseded: bool | None = None,
        include_summaries: bool | None = None,
    ) -> types.HistoryPage:
        """Read the history: the newest live turns in chronological order; `next_cursor` is the page before them."""
        return cast(
            "types.HistoryPage",
            self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns",
                "safe",
                query={
                    "order": order,
                    "after": after,
                    "before": before,
                    "since_rev": since_rev,
                    "status": status,
                    "actors": actors,
                    "limit": limit,
                    "cursor": cursor,
                    "include_superseded": include_superseded,
                    "include_summaries": include_summaries,
                },
                headers={},
            ),
        )

    def append_turns(
        self, conversation_id: str, *, body: types.Append, idempotency_key: str | None = None
    ) -> types.AppendResult:
        """Append 1 to 500 turns, all or none. When this returns, they are durable and recall finds them."""
        return cast(
            "types.AppendResult",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def erase_turns(self, conversation_id: str, *, ids: list[str], only_this: bool | None = None) -> types.ErasedTurns:
        """Erase the content of 1 to 500 turns, all or none, with everything derived from it. Tombstones stay."""
        return cast(
            "types.ErasedTurns",
            self._transport.request(
                "DELETE",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns",
                "safe",
                query={"only_this": only_this, "ids": ids},
                headers={},
            ),
        )

    def search_turns(self, conversation_id: str, *, body: types.HistorySearch) -> types.HistoryPage:
        """Read the history like `GET …/turns`, with the filters in the body: names of actors stay out of the address."""
        return cast(
            "types.HistoryPage",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/search",
                "safe",
                query={},
                headers={},
                body=body,
            ),
        )

    def get_turn(self, conversation_id: str, turn_id: str) -> types.Turn:
        """Read one turn."""
        return cast(
            "types.Turn",
            self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    def erase_turn(self, conversation_id: str, turn_id: str, *, only_this: bool | None = None) -> None:
        """Erase the content of a turn, with everything derived from it. A tombstone stays in its place."""
        self._transport.request(
            "DELETE",
            f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}",
            "safe",
            query={"only_this": only_this},
            headers={},
        )

    def revise_turn(
        self, conversation_id: str, turn_id: str, *, body: types.Revision, idempotency_key: str | None = None
    ) -> types.RevisionResult:
        """Edit a turn or generate it again: a new turn takes its position, the old one is superseded and stays stored."""
        return cast(
            "types.RevisionResult",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/revisions",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def build_context(
        self, conversation_id: str, *, body: types.ContextRequest, x_agent_id: str | None = None
    ) -> types.Context:
        """Build the message list for one model call, never over `token_budget`."""
        return cast(
            "types.Context",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/context",
                "safe",
                query={},
                headers={"X-Agent-Id": x_agent_id},
                body=body,
            ),
        )

    def recall(self, *, body: types.EvaluatedRecall, x_agent_id: str | None = None) -> types.RecallResult:
        """Search across conversations: the named ones, or all of a project, an owner or the tenant."""
        return cast(
            "types.RecallResult",
            self._transport.request(
                "POST", "/v1/recall", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    def recall_in_conversation(
        self, conversation_id: str, *, body: types.EvaluatedConversationRecall, x_agent_id: str | None = None
    ) -> types.RecallResult:
        """Search within one conversation. `space` and `configuration` are for evaluations, as in `POST /v1/recall`."""
        return cast(
            "types.RecallResult",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/recall",
                "safe",
                query={},
                headers={"X-Agent-Id": x_agent_id},
                body=body,
            ),
        )

    def open_turn(
        self, conversation_id: str, *, body: types.Opening, idempotency_key: str | None = None
    ) -> types.OpenedTurn:
        """Open a turn that is written while it streams. No context shows it before its commit."""
        return cast(
            "types.OpenedTurn",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/open",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def append_chunk(
        self,
        conversation_id: str,
        turn_id: str,
        *,
        body: types.Chunk,
        epoch: int | None = None,
        durable: bool | None = None,
    ) -> types.ChunkResult:
        """Append text to an open turn. The answer is sent when the text is accepted; subscribers see it at once."""
        return cast(
            "types.ChunkResult",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/chunks",
                "safe",
                query={"epoch": epoch, "durable": durable},
                headers={},
                body=body,
            ),
        )

    def commit_turn(
        self, conversation_id: str, turn_id: str, *, body: types.Ending, epoch: int | None = None
    ) -> types.Turn:
        """Commit an open turn: it gets its seq, and recall finds it. A repeat returns the same answer."""
        return cast(
            "types.Turn",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/commit",
                "safe",
                query={"epoch": epoch},
                headers={},
                body=body,
            ),
        )

    def abort_turn(
        self, conversation_id: str, turn_id: str, *, body: types.Aborting, epoch: int | None = None
    ) -> types.Turn:
        """Abort an open turn. The row keeps its text for audit; a repeat changes nothing."""
        return cast(
            "types.Turn",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/abort",
                "safe",
                query={"epoch": epoch},
                headers={},
                body=body,
            ),
        )

    def resume_turn(self, conversation_id: str, turn_id: str, *, body: types.Resuming) -> types.OpenedTurn:
        """Continue an open turn as the same writer, from `durable_offset`; the previous connection loses the turn."""
        return cast(
            "types.OpenedTurn",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/resume",
                "safe",
                query={},
                headers={},
                body=body,
            ),
        )

    def list_summaries(
        self,
        conversation_id: str,
        *,
        include_replaced: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.SummaryPage:
        """List the summaries of a conversation, by the end of their range of turns."""
        return cast(
            "types.SummaryPage",
            self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/summaries",
                "safe",
                query={"include_replaced": include_replaced, "order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    def summarise_turns(
        self, conversation_id: str, *, body: types.SummaryRequest, idempotency_key: str | None = None
    ) -> types.Compacted:
        """Summarise turns now, through a named one or all but the newest. A repeat finds nothing left to do."""
        return cast(
            "types.Compacted",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/summaries",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def get_summary(self, conversation_id: str, summary_id: str) -> types.Summary:
        """Read one summary, also one that has been replaced."""
        return cast(
            "types.Summary",
            self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/summaries/{quote(summary_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    def compact_conversation(self, conversation_id: str, *, body: types.CompactionRequest) -> types.Compacted:
        """Compact now, by the conversation's policy or the given one; does nothing if nothing is due."""
        return cast(
            "types.Compacted",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/compact",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    def undo_compaction(self, conversation_id: str) -> types.Undone:
        """Undo the newest summary; the summaries that it replaced are valid again."""
        return cast(
            "types.Undone",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/compact/undo",
                "unsent",
                query={},
                headers={},
            ),
        )

    def dry_run_conversation(self, conversation_id: str) -> types.DryRun:
        """Return what compaction, extraction and retention would do to a conversation now, and at what cost of the model."""
        return cast(
            "types.DryRun",
            self._transport.request(
                "GET", f"/v1/conversations/{quote(conversation_id, safe='')}/dry-run", "safe", query={}, headers={}
            ),
        )

    def create_conversation_token(self, conversation_id: str, *, body: types.TokenCreate) -> types.TokenMade:
        """Create a short-lived token for this conversation, for a browser: to read it, or to read it and append to it."""
        return cast(
            "types.TokenMade",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/tokens",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    def void_conversation_tokens(self, conversation_id: str) -> None:
        """Revoke every token of this conversation: at once in this process, within the key cache's time in others."""
        self._transport.request(
            "DELETE", f"/v1/conversations/{quote(conversation_id, safe='')}/tokens", "safe", query={}, headers={}
        )

    def list_facts(
        self,
        *,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        subject: str | None = None,
        predicate: str | None = None,
        owner: str | None = None,
        project: str | None = None,
        conversation_id: str | None = None,
        tier: types.Tier | None = None,
        as_of: str | None = None,
        known_at: str | None = None,
        include_retracted: bool | None = None,
    ) -> types.FactPage:
        """List facts, the last recorded first, including ended ones. `as_of` lists the facts that were true at a time."""
        return cast(
            "types.FactPage",
            self._transport.request(
                "GET",
                "/v1/facts",
                "safe",
                query={
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                    "subject": subject,
                    "predicate": predicate,
                    "owner": owner,
                    "project": project,
                    "conversation_id": conversation_id,
                    "tier": tier,
                    "as_of": as_of,
                    "known_at": known_at,
                    "include_retracted": include_retracted,
                },
                headers={},
            ),
        )

    def create_fact(self, *, body: types.FactCreate, idempotency_key: str | None = None) -> types.FactResult:
        """Assert a fact. A fact that is already stored gains evidence (200 instead of 201)."""
        return cast(
            "types.FactResult",
            self._transport.request(
                "POST", "/v1/facts", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    def search_facts(self, *, body: types.FactListing) -> types.FactPage:
        """List facts like `GET /v1/facts`, with the filters in the body: names of persons stay out of the address."""
        return cast(
            "types.FactPage",
            self._transport.request("POST", "/v1/facts/search", "safe", query={}, headers={}, body=body),
        )

    def get_fact(self, fact_id: str) -> types.Fact:
        """Read one fact, retracted or not."""
        return cast(
            "types.Fact",
            self._transport.request("GET", f"/v1/facts/{quote(fact_id, safe='')}", "safe", query={}, headers={}),
        )

    def update_fact(self, fact_id: str, *, body: types.FactUpdate) -> types.FactResult:
        """Correct a fact: it is retracted and replaced by another fact with an id of its own."""
        return cast(
            "types.FactResult",
            self._transport.request(
                "PATCH", f"/v1/facts/{quote(fact_id, safe='')}", "unsent", query={}, headers={}, body=body
            ),
        )

    def retract_fact(self, fact_id: str) -> types.FactResult:
        """Retract a fact that was never true. Its row stays for history and undo; a repeat changes nothing."""
        return cast(
            "types.FactResult",
            self._transport.request("DELETE", f"/v1/facts/{quote(fact_id, safe='')}", "safe", query={}, headers={}),
        )

    def undo_fact(self, fact_id: str) -> types.FactResult:
        """Undo the last change of a fact: an assertion, an extraction, a correction, a retraction."""
        return cast(
            "types.FactResult",
            self._transport.request(
                "POST", f"/v1/facts/{quote(fact_id, safe='')}/undo", "unsent", query={}, headers={}
            ),
        )

    def extract_facts(self, conversation_id: str, *, body: types.FactsExtract) -> types.Extraction:
        """Extract facts now from the turns that were not processed yet, through a named one or all of them."""
        return cast(
            "types.Extraction",
            self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/facts/extract",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    def list_memories(
        self,
        *,
        agent_id: str | None = None,
        owner: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        x_agent_id: str | None = None,
    ) -> types.MemoryPage:
        """List memories by the time they were stored: of all agents for an administrator, else of the calling agent."""
        return cast(
            "types.MemoryPage",
            self._transport.request(
                "GET",
                "/v1/memories",
                "safe",
                query={"agent_id": agent_id, "owner": owner, "order": order, "limit": limit, "cursor": cursor},
                headers={"X-Agent-Id": x_agent_id},
            ),
        )

    def store_memory(
        self, *, body: types.MemoryStore, x_agent_id: str | None = None, idempotency_key: str | None = None
    ) -> types.MemoryStored:
        """Store a memory of the calling agent, which recall finds at once; without a vector nothing is stored."""
        return cast(
            "types.MemoryStored",
            self._transport.request(
                "POST",
                "/v1/memories",
                "key",
                query={},
                headers={"X-Agent-Id": x_agent_id, "Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def search_memories(self, *, body: types.MemoryQuery, x_agent_id: str | None = None) -> types.MemoryEntries:
        """Recall the memories of the calling agent, the nearest first."""
        return cast(
            "types.MemoryEntries",
            self._transport.request(
                "POST", "/v1/memories/search", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    def filter_memories(self, *, body: types.MemoryListing, x_agent_id: str | None = None) -> types.MemoryPage:
        """List memories like `GET /v1/memories`, with the filters in the body: names of persons stay out of the address."""
        return cast(
            "types.MemoryPage",
            self._transport.request(
                "POST", "/v1/memories/list", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    def get_memory(self, memory_id: str, *, x_agent_id: str | None = None) -> types.Memory:
        """Read one memory: of any agent for an administrator, else of the calling agent."""
        return cast(
            "types.Memory",
            self._transport.request(
                "GET", f"/v1/memories/{quote(memory_id, safe='')}", "safe", query={}, headers={"X-Agent-Id": x_agent_id}
            ),
        )

    def delete_memory(self, memory_id: str) -> None:
        """Delete a memory of any agent; a missing memory is no error."""
        self._transport.request("DELETE", f"/v1/memories/{quote(memory_id, safe='')}", "safe", query={}, headers={})

    def before_turn(self, *, body: types.BeforeTurn, x_agent_id: str | None = None) -> types.TurnContext:
        """Return the model's input for the next turn of a session, within `max_input_tok`; nothing is stored."""
        return cast(
            "types.TurnContext",
            self._transport.request(
                "POST", "/v1/lifecycle/before-turn", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    def after_turn(self, *, body: types.AfterTurn) -> types.TurnDone:
        """Store a turn of a session, which is created at first use. A repeat changes nothing; the first body is kept."""
        return cast(
            "types.TurnDone",
            self._transport.request("POST", "/v1/lifecycle/after-turn", "safe", query={}, headers={}, body=body),
        )

    def run_turn(self, *, body: types.RunTurn, x_agent_id: str | None = None) -> types.TurnPrepared | types.TurnDone:
        """Prepare a turn: store its input and return its context. With `operation_token`, store its output."""
        return cast(
            "types.TurnPrepared | types.TurnDone",
            self._transport.request(
                "POST", "/v1/lifecycle/run-turn", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    def run_maintenance(self, *, body: types.SessionRequest) -> types.Maintained:
        """Summarise, erase and expire what is due in a session now. May be interrupted and sent again."""
        return cast(
            "types.Maintained",
            self._transport.request("POST", "/v1/lifecycle/maintenance", "safe", query={}, headers={}, body=body),
        )

    def list_memory_tree(self, *, body: types.TreeRequest) -> types.Tree:
        """List the memory of a session as a tree: days, context, facts by tier, and metadata."""
        return cast(
            "types.Tree", self._transport.request("POST", "/v1/lifecycle/tree", "safe", query={}, headers={}, body=body)
        )

    def generate(
        self, *, body: types.Generate, x_agent_id: str | None = None, idempotency_key: str | None = None
    ) -> types.Generated:
        """Let the chat model answer in a conversation, and store the new messages with the answer, in one commit."""
        return cast(
            "types.Generated",
            self._transport.request(
                "POST",
                "/v1/generate",
                "key",
                query={},
                headers={"X-Agent-Id": x_agent_id, "Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def create_chat_completion(
        self,
        *,
        body: types.CreateChatCompletion,
        x_conversation_id: str | None = None,
        x_project: str | None = None,
        x_agent_id: str | None = None,
    ) -> types.Passed:
        """Create a chat completion in OpenAI's format, with `stream` as events."""
        return cast(
            "types.Passed",
            self._transport.request(
                "POST",
                "/openai/v1/chat/completions",
                "unsent",
                query={},
                headers={"X-Conversation-Id": x_conversation_id, "X-Project": x_project, "X-Agent-Id": x_agent_id},
                body=body,
            ),
        )

    def create_embedding(self, *, body: dict[str, types.JsonValue]) -> types.Passed:
        """Create embeddings with the model's endpoint; request and answer pass unchanged."""
        return cast(
            "types.Passed",
            self._transport.request("POST", "/openai/v1/embeddings", "unsent", query={}, headers={}, body=body),
        )

    def list_models(self) -> types.Passed:
        """List the models of the endpoint, unchanged."""
        return cast("types.Passed", self._transport.request("GET", "/openai/v1/models", "safe", query={}, headers={}))

    def get_model(self, model: str) -> types.Passed:
        """Read one model of the endpoint, unchanged."""
        return cast(
            "types.Passed",
            self._transport.request("GET", f"/openai/v1/models/{quote(model, safe='')}", "safe", query={}, headers={}),
        )

    def create_openai_conversation(
        self, *, body: types.NewConversation | None | None = None, idempotency_key: str | None = None
    ) -> types.OpenAIConversation:
        """Create a conversation, with or without items."""
        return cast(
            "types.OpenAIConversation",
            self._transport.request(
                "POST",
                "/openai/v1/conversations",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def get_openai_conversation(self, conversation_id: str) -> types.OpenAIConversation:
        """Read one conversation."""
        return cast(
            "types.OpenAIConversation",
            self._transport.request(
                "GET", f"/openai/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def update_openai_conversation(
        self, conversation_id: str, *, body: types.ChangedConversation
    ) -> types.OpenAIConversation:
        """Replace the metadata of a conversation."""
        return cast(
            "types.OpenAIConversation",
            self._transport.request(
                "POST",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    def delete_openai_conversation(self, conversation_id: str) -> types.DeletedConversation:
        """Delete a conversation with everything derived from it."""
        return cast(
            "types.DeletedConversation",
            self._transport.request(
                "DELETE", f"/openai/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def list_openai_items(
        self,
        conversation_id: str,
        *,
        after: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        include: list[str] | None = None,
    ) -> types.Items:
        """List the items of a conversation; turns of any origin are shown as items."""
        return cast(
            "types.Items",
            self._transport.request(
                "GET",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items",
                "safe",
                query={"after": after, "order": order, "limit": limit, "include": include},
                headers={},
            ),
        )

    def create_openai_items(
        self, conversation_id: str, *, body: types.NewItems, include: list[str] | None = None
    ) -> types.Items:
        """Append items of OpenAI's Responses, all or none; each becomes a turn and is returned unchanged."""
        return cast(
            "types.Items",
            self._transport.request(
                "POST",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items",
                "unsent",
                query={"include": include},
                headers={},
                body=body,
            ),
        )

    def get_openai_item(self, item_id: str, conversation_id: str, *, include: list[str] | None = None) -> types.Passed:
        """Read one item."""
        return cast(
            "types.Passed",
            self._transport.request(
                "GET",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items/{quote(item_id, safe='')}",
                "safe",
                query={"include": include},
                headers={},
            ),
        )

    def delete_openai_item(self, item_id: str, conversation_id: str) -> types.OpenAIConversation:
        """Erase an item with all items of its turn, and all other revisions of that turn; tombstones stay."""
        return cast(
            "types.OpenAIConversation",
            self._transport.request(
                "DELETE",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items/{quote(item_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    def create_response(
        self,
        *,
        body: types.CreateResponse,
        x_conversation_id: str | None = None,
        x_project: str | None = None,
        x_agent_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> types.OpenAIResponse:
        """Create a response in OpenAI's format, with `stream` as events."""
        return cast(
            "types.OpenAIResponse",
            self._transport.request(
                "POST",
                "/openai/v1/responses",
                "key",
                query={},
                headers={
                    "X-Conversation-Id": x_conversation_id,
                    "X-Project": x_project,
                    "X-Agent-Id": x_agent_id,
                    "Idempotency-Key": idempotency_key,
                },
                body=body,
            ),
        )

    def get_response(
        self,
        response_id: str,
        *,
        stream: bool | None = None,
        starting_after: int | None = None,
        include: list[str] | None = None,
    ) -> types.OpenAIResponse:
        """Read one response. With `stream` its events so far are sent, and those to come while it is in progress."""
        return cast(
            "types.OpenAIResponse",
            self._transport.request(
                "GET",
                f"/openai/v1/responses/{quote(response_id, safe='')}",
                "safe",
                query={"stream": stream, "starting_after": starting_after, "include": include},
                headers={},
            ),
        )

    def delete_response(self, response_id: str) -> types.DeletedResponse:
        """Delete a response; in a conversation that was created for responses, its input and output are erased too."""
        return cast(
            "types.DeletedResponse",
            self._transport.request(
                "DELETE", f"/openai/v1/responses/{quote(response_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def cancel_response(self, response_id: str) -> types.OpenAIResponse:
        """Abort a response that is in progress; its text so far is kept in an aborted turn."""
        return cast(
            "types.OpenAIResponse",
            self._transport.request(
                "POST", f"/openai/v1/responses/{quote(response_id, safe='')}/cancel", "unsent", query={}, headers={}
            ),
        )

    def list_response_input_items(
        self,
        response_id: str,
        *,
        after: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        include: list[str] | None = None,
    ) -> types.Items:
        """List the items that were stored as the input of a response."""
        return cast(
            "types.Items",
            self._transport.request(
                "GET",
                f"/openai/v1/responses/{quote(response_id, safe='')}/input_items",
                "safe",
                query={"after": after, "order": order, "limit": limit, "include": include},
                headers={},
            ),
        )

    def ask_agent(
        self, *, body: types.AskAgent, x_agent_id: str | None = None, idempotency_key: str | None = None
    ) -> types.AgentAnswer:
        """Ask the agent, which answers from earlier turns, conversations and memories with its granted tools."""
        return cast(
            "types.AgentAnswer",
            self._transport.request(
                "POST",
                "/v1/agent/ask",
                "key",
                query={},
                headers={"X-Agent-Id": x_agent_id, "Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def list_erasures(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.ErasurePage:
        """List the receipts of erasures, newest first. They are kept, and have no personal data. Needs `admin`."""
        return cast(
            "types.ErasurePage",
            self._transport.request(
                "GET", "/v1/erasures", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    def create_erasure(self, *, body: types.ErasureCreate, idempotency_key: str | None = None) -> types.Operation:
        """Erase all data of a conversation, an owner, an actor or a tenant. Needs the scope `admin`."""
        return cast(
            "types.Operation",
            self._transport.request(
                "POST", "/v1/erasures", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    def get_erasure(self, erasure_id: str) -> types.Erasure:
        """Read the receipt of an erasure; its progress is that of the operation with the same id. Needs `admin`."""
        return cast(
            "types.Erasure",
            self._transport.request("GET", f"/v1/erasures/{quote(erasure_id, safe='')}", "safe", query={}, headers={}),
        )

    def verify_erasure(self, *, body: types.ReceiptCheck) -> types.ReceiptVerification:
        """Check that this installation signed a receipt, and that it is about a given subject. Needs `admin`."""
        return cast(
            "types.ReceiptVerification",
            self._transport.request("POST", "/v1/erasures/verify", "safe", query={}, headers={}, body=body),
        )

    def look_up_owner(self, *, body: types.OwnerLookup) -> types.OwnerView:
        """List all that is stored under an owner: conversations, facts and memories of all agents."""
        return cast(
            "types.OwnerView",
            self._transport.request("POST", "/v1/owners/lookup", "safe", query={}, headers={}, body=body),
        )

    def export_conversation(
        self,
        conversation_id: str,
        *,
        created_at: str | None = None,
        checkpoints: bool | None = None,
        cursor: str | None = None,
    ) -> bytes:
        """Export a conversation with its turns, summaries and facts as lines of JSON."""
        return cast(
            "bytes",
            self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/export",
                "safe",
                query={"created_at": created_at, "checkpoints": checkpoints, "cursor": cursor},
                headers={},
                is_bytes=True,
            ),
        )

    def export_data(self, *, body: types.ExportCreate) -> bytes:
        """Export a project, or all data of the tenant, as lines of JSON. Needs the scopes `read` and `admin`."""
        return cast(
            "bytes",
            self._transport.request("POST", "/v1/export", "unsent", query={}, headers={}, body=body, is_bytes=True),
        )

    def import_data(
        self, *, body: bytes, dry_run: bool | None = None, source: types.ForeignSystem | Literal["auto"] | None = None
    ) -> types.Operation:
        """Import lines of an export, plain or in gzip. Needs the scope `admin`. Answers with an operation, at `Location`."""
        return cast(
            "types.Operation",
            self._transport.request(
                "POST", "/v1/import", "unsent", query={"dry_run": dry_run, "source": source}, headers={}, body=body
            ),
        )

    def list_operations(
        self,
        *,
        kind: str | None = None,
        status: types.OperationStatus | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.OperationPage:
        """List operations, newest first: those of the tenant for an administrator, else those that this key started."""
        return cast(
            "types.OperationPage",
            self._transport.request(
                "GET",
                "/v1/operations",
                "safe",
                query={"kind": kind, "status": status, "order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    def get_operation(self, operation_id: str) -> types.Operation:
        """Read the state, progress and result of an operation. It is kept for a day after its end (setting)."""
        return cast(
            "types.Operation",
            self._transport.request(
                "GET", f"/v1/operations/{quote(operation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def cancel_operation(self, operation_id: str) -> types.Operation:
        """Cancel an operation: it ends after its present step, and what it has done so far stays."""
        return cast(
            "types.Operation",
            self._transport.request(
                "POST", f"/v1/operations/{quote(operation_id, safe='')}/cancel", "unsent", query={}, headers={}
            ),
        )

    def list_keys(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.KeyPage:
        """List the tenant's keys, newest first, without their secrets. Needs the scope `admin`."""
        return cast(
            "types.KeyPage",
            self._transport.request(
                "GET", "/v1/admin/keys", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    def create_key(self, *, body: types.KeyCreate, idempotency_key: str | None = None) -> types.KeyMade:
        """Create a key with some of the caller's own scopes. Needs the scope `admin`."""
        return cast(
            "types.KeyMade",
            self._transport.request(
                "POST", "/v1/admin/keys", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    def rotate_key(self, key_id: str, *, body: types.KeyRotate, idempotency_key: str | None = None) -> types.KeyMade:
        """Give a key a new secret; the old one is valid for `grace_s` more seconds. Needs `admin` and the key's scopes."""
        return cast(
            "types.KeyMade",
            self._transport.request(
                "POST",
                f"/v1/admin/keys/{quote(key_id, safe='')}/rotate",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def revoke_key(self, key_id: str, *, force: bool | None = None) -> None:
        """Revoke a key permanently; every replica refuses it within a second. Needs `admin` and the key's scopes."""
        self._transport.request(
            "DELETE", f"/v1/admin/keys/{quote(key_id, safe='')}", "safe", query={"force": force}, headers={}
        )

    def list_tenants(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.TenantPage:
        """List all tenants, newest first. Needs the scope `operator`."""
        return cast(
            "types.TenantPage",
            self._transport.request(
                "GET", "/v1/admin/tenants", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    def create_tenant(self, *, body: types.TenantCreate, idempotency_key: str | None = None) -> types.TenantMade:
        """Create a tenant with its first key (read, write, admin). Needs the scope `operator`."""
        return cast(
            "types.TenantMade",
            self._transport.request(
                "POST", "/v1/admin/tenants", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    def get_tenant(self, tenant_id: str) -> types.Tenant:
        """Read one tenant. Needs the scope `operator`."""
        return cast(
            "types.Tenant",
            self._transport.request(
                "GET", f"/v1/admin/tenants/{quote(tenant_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def update_tenant(self, tenant_id: str, *, body: types.TenantUpdate) -> types.Tenant:
        """Rename a tenant. Needs the scope `operator`."""
        return cast(
            "types.Tenant",
            self._transport.request(
                "PATCH", f"/v1/admin/tenants/{quote(tenant_id, safe='')}", "unsent", query={}, headers={}, body=body
            ),
        )

    def get_limits(self) -> types.LimitsView:
        """Return the limits of the tenant, and what it has used of its quotas today. Needs the scope `admin`."""
        return cast(
            "types.LimitsView", self._transport.request("GET", "/v1/admin/limits", "safe", query={}, headers={})
        )

    def get_tenant_limits(self, tenant_id: str) -> types.LimitsView:
        """Return the limits of a tenant, and what it has used of its quotas today. Needs the scope `operator`."""
        return cast(
            "types.LimitsView",
            self._transport.request(
                "GET", f"/v1/admin/tenants/{quote(tenant_id, safe='')}/limits", "safe", query={}, headers={}
            ),
        )

    def set_tenant_limits(self, tenant_id: str, *, body: types.TenantLimits) -> types.LimitsView:
        """Set the limits of a tenant: its quotas, and the rates of each of its keys. Needs the scope `operator`."""
        return cast(
            "types.LimitsView",
            self._transport.request(
                "PUT", f"/v1/admin/tenants/{quote(tenant_id, safe='')}/limits", "safe", query={}, headers={}, body=body
            ),
        )

    def get_key_limits(self, key_id: str) -> types.KeyLimitsView:
        """Return the rates of a key. Needs the scope `admin`."""
        return cast(
            "types.KeyLimitsView",
            self._transport.request(
                "GET", f"/v1/admin/keys/{quote(key_id, safe='')}/limits", "safe", query={}, headers={}
            ),
        )

    def set_key_limits(self, key_id: str, *, body: types.Rates) -> types.KeyLimitsView:
        """Lower the rates of another key than the caller's. Needs the scope `admin`."""
        return cast(
            "types.KeyLimitsView",
            self._transport.request(
                "PUT", f"/v1/admin/keys/{quote(key_id, safe='')}/limits", "safe", query={}, headers={}, body=body
            ),
        )

    def get_stats(self, *, of: Literal["tenant", "installation"] | None = None, top: int | None = None) -> types.Stats:
        """Return statistics of the caller's tenant, or of the installation. Needs the scope `admin`."""
        return cast(
            "types.Stats",
            self._transport.request("GET", "/v1/admin/stats", "safe", query={"of": of, "top": top}, headers={}),
        )

    def list_model_usage(
        self,
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        purpose: types.ModelPurpose | None = None,
        all_tenants: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.ModelUsageDayPage:
        """List the tokens used by chat models by day, purpose and model, newest day first. Needs the scope `admin`."""
        return cast(
            "types.ModelUsageDayPage",
            self._transport.request(
                "GET",
                "/v1/admin/usage",
                "safe",
                query={
                    "first_day": first_day,
                    "last_day": last_day,
                    "purpose": purpose,
                    "all_tenants": all_tenants,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    def get_own_key(self) -> types.OwnKey:
        """Return what the key or access token of this request is, and what it may do. Needs no scope."""
        return cast("types.OwnKey", self._transport.request("GET", "/v1/keys/self", "safe", query={}, headers={}))

    def list_jobs(
        self,
        *,
        kind: str | None = None,
        state: types.JobState | None = None,
        all_tenants: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.JobViewPage:
        """List unfinished jobs, newest first. Finished jobs are deleted."""
        return cast(
            "types.JobViewPage",
            self._transport.request(
                "GET",
                "/v1/admin/jobs",
                "safe",
                query={
                    "kind": kind,
                    "state": state,
                    "all_tenants": all_tenants,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    def count_jobs(self, *, all_tenants: bool | None = None) -> types.JobCounts:
        """Return the number of unfinished jobs, by kind and state, and when the next of each kind is due."""
        return cast(
            "types.JobCounts",
            self._transport.request(
                "GET", "/v1/admin/jobs/counts", "safe", query={"all_tenants": all_tenants}, headers={}
            ),
        )

    def get_job(self, job_id: str, *, all_tenants: bool | None = None) -> types.JobView:
        """Read one job that has not finished, such as a parked one with its error."""
        return cast(
            "types.JobView",
            self._transport.request(
                "GET",
                f"/v1/admin/jobs/{quote(job_id, safe='')}",
                "safe",
                query={"all_tenants": all_tenants},
                headers={},
            ),
        )

    def retry_job(self, job_id: str, *, all_tenants: bool | None = None) -> types.JobView:
        """Run a parked, cancelled or waiting job now, with all its attempts."""
        return cast(
            "types.JobView",
            self._transport.request(
                "POST",
                f"/v1/admin/jobs/{quote(job_id, safe='')}/retry",
                "unsent",
                query={"all_tenants": all_tenants},
                headers={},
            ),
        )

    def cancel_job(self, job_id: str, *, all_tenants: bool | None = None) -> types.JobView:
        """Cancel a job. A running job stops within a lease; its writes stay."""
        return cast(
            "types.JobView",
            self._transport.request(
                "POST",
                f"/v1/admin/jobs/{quote(job_id, safe='')}/cancel",
                "unsent",
                query={"all_tenants": all_tenants},
                headers={},
            ),
        )

    def list_audit_entries(
        self,
        *,
        action: types.Action | None = None,
        key_id: str | None = None,
        object_kind: types.ObjectKind | None = None,
        object_id: str | None = None,
        conversation_id: str | None = None,
        request_id: str | None = None,
        since: str | None = None,
        until: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.AuditEntryPage:
        """List the audit entries of the key's tenant by time, newest first. Needs the scope `admin`."""
        return cast(
            "types.AuditEntryPage",
            self._transport.request(
                "GET",
                "/v1/admin/audit",
                "safe",
                query={
                    "action": action,
                    "key_id": key_id,
                    "object_kind": object_kind,
                    "object_id": object_id,
                    "conversation_id": conversation_id,
                    "request_id": request_id,
                    "since": since,
                    "until": until,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    def verify_audit(self, *, body: types.AuditVerify) -> types.AuditVerification:
        """Verify the hash chains of the tenant's audit, as `turnkeep audit verify` does. Needs the scope `admin`."""
        return cast(
            "types.AuditVerification",
            self._transport.request("POST", "/v1/admin/audit/verify", "unsent", query={}, headers={}, body=body),
        )

    def list_spaces(self) -> types.EmbeddingSpaces:
        """List the embedding spaces with their states and how far they are filled. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpaces",
            self._transport.request("GET", "/v1/admin/embedding-spaces", "safe", query={}, headers={}),
        )

    def add_space(self, *, body: types.SpaceAdd) -> types.EmbeddingSpace:
        """Start to fill the space of the second configured embedder. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            self._transport.request("POST", "/v1/admin/embedding-spaces", "unsent", query={}, headers={}, body=body),
        )

    def roll_back_space(self) -> types.EmbeddingSpace:
        """Search the space again that was searched before the last switch. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            self._transport.request("POST", "/v1/admin/embedding-spaces/rollback", "unsent", query={}, headers={}),
        )

    def compare_space(self, space_id: str, *, body: types.SpaceComparison) -> types.SpaceComparisonResult:
        """Run queries in a space and in the searched one, in the key's tenant. Needs the scope `operator`."""
        return cast(
            "types.SpaceComparisonResult",
            self._transport.request(
                "POST",
                f"/v1/admin/embedding-spaces/{quote(space_id, safe='')}/compare",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    def switch_space(self, space_id: str, *, body: types.SpaceSwitch) -> types.EmbeddingSpace:
        """Search a space from now on, on every replica within a second. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            self._transport.request(
                "POST",
                f"/v1/admin/embedding-spaces/{quote(space_id, safe='')}/switch",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    def drop_space(self, space_id: str) -> types.EmbeddingSpace:
        """Delete a space's vectors and its vector index, in the background. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            self._transport.request(
                "DELETE", f"/v1/admin/embedding-spaces/{quote(space_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    def get_samples(self, *, minutes: int | None = None) -> types.MetricSamples:
        """Return figures of the process that answers, one sample for each ten seconds. Needs the scope `operator`."""
        return cast(
            "types.MetricSamples",
            self._transport.request("GET", "/v1/admin/samples", "safe", query={"minutes": minutes}, headers={}),
        )

    def list_replicas(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.ReplicaViewPage:
        """List the running servers and workers, the one that started first first. Needs the scope `operator`."""
        return cast(
            "types.ReplicaViewPage",
            self._transport.request(
                "GET",
                "/v1/admin/replicas",
                "safe",
                query={"order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    def list_slow_calls(
        self,
        *,
        all_tenants: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.SlowCallPage:
        """List the slow HTTP requests of the process that answers, latest first: where their time went, never content."""
        return cast(
            "types.SlowCallPage",
            self._transport.request(
                "GET",
                "/v1/admin/slow-calls",
                "safe",
                query={"all_tenants": all_tenants, "order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    def list_webhooks(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.WebhookPage:
        """List the tenant's webhooks, newest first, without their secrets. Needs the scope `admin`."""
        return cast(
            "types.WebhookPage",
            self._transport.request(
                "GET", "/v1/webhooks", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    def create_webhook(self, *, body: types.WebhookCreate, idempotency_key: str | None = None) -> types.WebhookMade:
        """Create a webhook: events are sent to its URL, signed with its secret. Needs the scope `admin`."""
        return cast(
            "types.WebhookMade",
            self._transport.request(
                "POST", "/v1/webhooks", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    def get_webhook(self, webhook_id: str) -> types.Webhook:
        """Read one webhook, without its secret. Needs the scope `admin`."""
        return cast(
            "types.Webhook",
            self._transport.request("GET", f"/v1/webhooks/{quote(webhook_id, safe='')}", "safe", query={}, headers={}),
        )

    def update_webhook(self, webhook_id: str, *, body: types.WebhookUpdate) -> types.Webhook:
        """Change a webhook, or disable and enable it. Needs the scope `admin`."""
        return cast(
            "types.Webhook",
            self._transport.request(
                "PATCH", f"/v1/webhooks/{quote(webhook_id, safe='')}", "unsent", query={}, headers={}, body=body
            ),
        )

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries. Needs the scope `admin`."""
        self._transport.request("DELETE", f"/v1/webhooks/{quote(webhook_id, safe='')}", "safe", query={}, headers={})

    def rotate_webhook_secret(
        self, webhook_id: str, *, body: types.SecretRotate, idempotency_key: str | None = None
    ) -> types.WebhookMade:
        """Give a webhook a new secret; deliveries have both signatures for `grace_s` more seconds. Needs `admin`."""
        return cast(
            "types.WebhookMade",
            self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/rotate-secret",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def send_test_event(self, webhook_id: str, *, idempotency_key: str | None = None) -> types.Delivery:
        """Send an event of type `webhook.test` once, also if the webhook is disabled. Needs the scope `admin`."""
        return cast(
            "types.Delivery",
            self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/test",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
            ),
        )

    def list_deliveries(
        self,
        webhook_id: str,
        *,
        status: types.DeliveryStatus | None = None,
        type: types.EventType | Literal["webhook.test"] | None = None,
        conversation_id: str | None = None,
        since: str | None = None,
        until: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.DeliveryPage:
        """List a webhook's deliveries, newest event first. `status=dead` lists the dead letters. Needs `admin`."""
        return cast(
            "types.DeliveryPage",
            self._transport.request(
                "GET",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries",
                "safe",
                query={
                    "status": status,
                    "type": type,
                    "conversation_id": conversation_id,
                    "since": since,
                    "until": until,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    def get_delivery(self, webhook_id: str, delivery_id: str) -> types.Delivery:
        """Read one delivery. Needs the scope `admin`."""
        return cast(
            "types.Delivery",
            self._transport.request(
                "GET",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries/{quote(delivery_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    def replay_deliveries(
        self, webhook_id: str, *, body: types.ReplayRequest, idempotency_key: str | None = None
    ) -> types.Operation:
        """Send all dead deliveries since a time again, or those in other states. Needs the scope `admin`."""
        return cast(
            "types.Operation",
            self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries/replay",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    def replay_delivery(self, webhook_id: str, delivery_id: str) -> types.Delivery:
        """Send an event again, in any status, with the same id and all its retries. Needs the scope `admin`."""
        return cast(
            "types.Delivery",
            self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries/{quote(delivery_id, safe='')}/replay",
                "unsent",
                query={},
                headers={},
            ),
        )

    def get_health(self) -> types.Health:
        """Return whether the process answers."""
        return cast("types.Health", self._transport.request("GET", "/healthz", "safe", query={}, headers={}))

    def get_readiness(self) -> types.Health:
        """Return whether requests can be served: the database answers and the model is loaded."""
        return cast("types.Health", self._transport.request("GET", "/readyz", "safe", query={}, headers={}))

    def get_metrics(self) -> bytes:
        """Return metrics in the text format of Prometheus, or in that of OpenMetrics, with exemplars, if `Accept` asks so."""
        return cast("bytes", self._transport.request("GET", "/metrics", "safe", query={}, headers={}, is_bytes=True))


class AsyncOperations:
    """The operations of the API, by their ids."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list_conversations(
        self,
        *,
        project: str | None = None,
        external_id: str | None = None,
        owner: str | None = None,
        participant: str | None = None,
        archived: Literal["true", "false", "any"] | None = None,
        pinned: bool | None = None,
        trashed: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.ListedConversationPage:
        """List conversations, last written first, with previews of their first and last message."""
        return cast(
            "types.ListedConversationPage",
            await self._transport.request(
                "GET",
                "/v1/conversations",
                "safe",
                query={
                    "project": project,
                    "external_id": external_id,
                    "owner": owner,
                    "participant": participant,
                    "archived": archived,
                    "pinned": pinned,
                    "trashed": trashed,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    async def create_conversation(
        self, *, body: types.ConversationCreate, idempotency_key: str | None = None
    ) -> types.Conversation:
        """Create a conversation, or return the one with this `id` or `external_id` (200 instead of 201)."""
        return cast(
            "types.Conversation",
            await self._transport.request(
                "POST", "/v1/conversations", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    async def search_conversations(self, *, body: types.ConversationSearch) -> types.ListedConversationPage:
        """Find conversations by project, names, metadata, times and title, last written first."""
        return cast(
            "types.ListedConversationPage",
            await self._transport.request("POST", "/v1/conversations/search", "safe", query={}, headers={}, body=body),
        )

    async def get_conversation(self, conversation_id: str) -> types.Conversation:
        """Read one conversation with its counters. The header `ETag` is its `rev`, for `If-Match` of a change."""
        return cast(
            "types.Conversation",
            await self._transport.request(
                "GET", f"/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def update_conversation(
        self, conversation_id: str, *, body: types.ConversationUpdate, if_match: str | None = None
    ) -> types.Conversation:
        """Change title, metadata, participants, ttl or policies. Omitted fields stay; null clears title and ttl_s."""
        return cast(
            "types.Conversation",
            await self._transport.request(
                "PATCH",
                f"/v1/conversations/{quote(conversation_id, safe='')}",
                "unsent",
                query={},
                headers={"If-Match": if_match},
                body=body,
            ),
        )

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation with everything derived from it, also one in the trash. This cannot be undone."""
        await self._transport.request(
            "DELETE", f"/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
        )

    async def fork_conversation(
        self, conversation_id: str, *, body: types.ForkRequest, idempotency_key: str | None = None
    ) -> types.Conversation:
        """Create a conversation with copies of the live turns through one; its hash chain continues the parent's."""
        return cast(
            "types.Conversation",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/fork",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def verify_conversation(self, conversation_id: str) -> types.Verification:
        """Verify the hash chain: hash every turn again that is not erased, and report the first break."""
        return cast(
            "types.Verification",
            await self._transport.request(
                "GET", f"/v1/conversations/{quote(conversation_id, safe='')}/verify", "safe", query={}, headers={}
            ),
        )

    async def trash_conversation(self, conversation_id: str) -> types.Conversation:
        """Put a conversation into the trash: it is hidden everywhere, and deleted at `expires_at` unless it is restored."""
        return cast(
            "types.Conversation",
            await self._transport.request(
                "POST", f"/v1/conversations/{quote(conversation_id, safe='')}/trash", "safe", query={}, headers={}
            ),
        )

    async def restore_conversation(self, conversation_id: str) -> types.Conversation:
        """Take a conversation out of the trash, with everything that it had. One that is not there stays as it is."""
        return cast(
            "types.Conversation",
            await self._transport.request(
                "POST", f"/v1/conversations/{quote(conversation_id, safe='')}/restore", "safe", query={}, headers={}
            ),
        )

    async def list_turns(
        self,
        conversation_id: str,
        *,
        order: Literal["asc", "desc"] | None = None,
        after: int | None = None,
        before: int | None = None,
        since_rev: int | None = None,
        status: Literal["committed", "aborted"] | None = None,
        actors: list[str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        include_superseded: bool | None = None,
        include_summaries: bool | None = None,
    ) -> types.HistoryPage:
        """Read the history: the newest live turns in chronological order; `next_cursor` is the page before them."""
        return cast(
            "types.HistoryPage",
            await self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns",
                "safe",
                query={
                    "order": order,
                    "after": after,
                    "before": before,
                    "since_rev": since_rev,
                    "status": status,
                    "actors": actors,
                    "limit": limit,
                    "cursor": cursor,
                    "include_superseded": include_superseded,
                    "include_summaries": include_summaries,
                },
                headers={},
            ),
        )

    async def append_turns(
        self, conversation_id: str, *, body: types.Append, idempotency_key: str | None = None
    ) -> types.AppendResult:
        """Append 1 to 500 turns, all or none. When this returns, they are durable and recall finds them."""
        return cast(
            "types.AppendResult",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def erase_turns(
        self, conversation_id: str, *, ids: list[str], only_this: bool | None = None
    ) -> types.ErasedTurns:
        """Erase the content of 1 to 500 turns, all or none, with everything derived from it. Tombstones stay."""
        return cast(
            "types.ErasedTurns",
            await self._transport.request(
                "DELETE",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns",
                "safe",
                query={"only_this": only_this, "ids": ids},
                headers={},
            ),
        )

    async def search_turns(self, conversation_id: str, *, body: types.HistorySearch) -> types.HistoryPage:
        """Read the history like `GET …/turns`, with the filters in the body: names of actors stay out of the address."""
        return cast(
            "types.HistoryPage",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/search",
                "safe",
                query={},
                headers={},
                body=body,
            ),
        )

    async def get_turn(self, conversation_id: str, turn_id: str) -> types.Turn:
        """Read one turn."""
        return cast(
            "types.Turn",
            await self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    async def erase_turn(self, conversation_id: str, turn_id: str, *, only_this: bool | None = None) -> None:
        """Erase the content of a turn, with everything derived from it. A tombstone stays in its place."""
        await self._transport.request(
            "DELETE",
            f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}",
            "safe",
            query={"only_this": only_this},
            headers={},
        )

    async def revise_turn(
        self, conversation_id: str, turn_id: str, *, body: types.Revision, idempotency_key: str | None = None
    ) -> types.RevisionResult:
        """Edit a turn or generate it again: a new turn takes its position, the old one is superseded and stays stored."""
        return cast(
            "types.RevisionResult",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/revisions",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def build_context(
        self, conversation_id: str, *, body: types.ContextRequest, x_agent_id: str | None = None
    ) -> types.Context:
        """Build the message list for one model call, never over `token_budget`."""
        return cast(
            "types.Context",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/context",
                "safe",
                query={},
                headers={"X-Agent-Id": x_agent_id},
                body=body,
            ),
        )

    async def recall(self, *, body: types.EvaluatedRecall, x_agent_id: str | None = None) -> types.RecallResult:
        """Search across conversations: the named ones, or all of a project, an owner or the tenant."""
        return cast(
            "types.RecallResult",
            await self._transport.request(
                "POST", "/v1/recall", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    async def recall_in_conversation(
        self, conversation_id: str, *, body: types.EvaluatedConversationRecall, x_agent_id: str | None = None
    ) -> types.RecallResult:
        """Search within one conversation. `space` and `configuration` are for evaluations, as in `POST /v1/recall`."""
        return cast(
            "types.RecallResult",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/recall",
                "safe",
                query={},
                headers={"X-Agent-Id": x_agent_id},
                body=body,
            ),
        )

    async def open_turn(
        self, conversation_id: str, *, body: types.Opening, idempotency_key: str | None = None
    ) -> types.OpenedTurn:
        """Open a turn that is written while it streams. No context shows it before its commit."""
        return cast(
            "types.OpenedTurn",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/open",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def append_chunk(
        self,
        conversation_id: str,
        turn_id: str,
        *,
        body: types.Chunk,
        epoch: int | None = None,
        durable: bool | None = None,
    ) -> types.ChunkResult:
        """Append text to an open turn. The answer is sent when the text is accepted; subscribers see it at once."""
        return cast(
            "types.ChunkResult",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/chunks",
                "safe",
                query={"epoch": epoch, "durable": durable},
                headers={},
                body=body,
            ),
        )

    async def commit_turn(
        self, conversation_id: str, turn_id: str, *, body: types.Ending, epoch: int | None = None
    ) -> types.Turn:
        """Commit an open turn: it gets its seq, and recall finds it. A repeat returns the same answer."""
        return cast(
            "types.Turn",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/commit",
                "safe",
                query={"epoch": epoch},
                headers={},
                body=body,
            ),
        )

    async def abort_turn(
        self, conversation_id: str, turn_id: str, *, body: types.Aborting, epoch: int | None = None
    ) -> types.Turn:
        """Abort an open turn. The row keeps its text for audit; a repeat changes nothing."""
        return cast(
            "types.Turn",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/abort",
                "safe",
                query={"epoch": epoch},
                headers={},
                body=body,
            ),
        )

    async def resume_turn(self, conversation_id: str, turn_id: str, *, body: types.Resuming) -> types.OpenedTurn:
        """Continue an open turn as the same writer, from `durable_offset`; the previous connection loses the turn."""
        return cast(
            "types.OpenedTurn",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/turns/{quote(turn_id, safe='')}/resume",
                "safe",
                query={},
                headers={},
                body=body,
            ),
        )

    async def list_summaries(
        self,
        conversation_id: str,
        *,
        include_replaced: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.SummaryPage:
        """List the summaries of a conversation, by the end of their range of turns."""
        return cast(
            "types.SummaryPage",
            await self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/summaries",
                "safe",
                query={"include_replaced": include_replaced, "order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    async def summarise_turns(
        self, conversation_id: str, *, body: types.SummaryRequest, idempotency_key: str | None = None
    ) -> types.Compacted:
        """Summarise turns now, through a named one or all but the newest. A repeat finds nothing left to do."""
        return cast(
            "types.Compacted",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/summaries",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def get_summary(self, conversation_id: str, summary_id: str) -> types.Summary:
        """Read one summary, also one that has been replaced."""
        return cast(
            "types.Summary",
            await self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/summaries/{quote(summary_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    async def compact_conversation(self, conversation_id: str, *, body: types.CompactionRequest) -> types.Compacted:
        """Compact now, by the conversation's policy or the given one; does nothing if nothing is due."""
        return cast(
            "types.Compacted",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/compact",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    async def undo_compaction(self, conversation_id: str) -> types.Undone:
        """Undo the newest summary; the summaries that it replaced are valid again."""
        return cast(
            "types.Undone",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/compact/undo",
                "unsent",
                query={},
                headers={},
            ),
        )

    async def dry_run_conversation(self, conversation_id: str) -> types.DryRun:
        """Return what compaction, extraction and retention would do to a conversation now, and at what cost of the model."""
        return cast(
            "types.DryRun",
            await self._transport.request(
                "GET", f"/v1/conversations/{quote(conversation_id, safe='')}/dry-run", "safe", query={}, headers={}
            ),
        )

    async def create_conversation_token(self, conversation_id: str, *, body: types.TokenCreate) -> types.TokenMade:
        """Create a short-lived token for this conversation, for a browser: to read it, or to read it and append to it."""
        return cast(
            "types.TokenMade",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/tokens",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    async def void_conversation_tokens(self, conversation_id: str) -> None:
        """Revoke every token of this conversation: at once in this process, within the key cache's time in others."""
        await self._transport.request(
            "DELETE", f"/v1/conversations/{quote(conversation_id, safe='')}/tokens", "safe", query={}, headers={}
        )

    async def list_facts(
        self,
        *,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        subject: str | None = None,
        predicate: str | None = None,
        owner: str | None = None,
        project: str | None = None,
        conversation_id: str | None = None,
        tier: types.Tier | None = None,
        as_of: str | None = None,
        known_at: str | None = None,
        include_retracted: bool | None = None,
    ) -> types.FactPage:
        """List facts, the last recorded first, including ended ones. `as_of` lists the facts that were true at a time."""
        return cast(
            "types.FactPage",
            await self._transport.request(
                "GET",
                "/v1/facts",
                "safe",
                query={
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                    "subject": subject,
                    "predicate": predicate,
                    "owner": owner,
                    "project": project,
                    "conversation_id": conversation_id,
                    "tier": tier,
                    "as_of": as_of,
                    "known_at": known_at,
                    "include_retracted": include_retracted,
                },
                headers={},
            ),
        )

    async def create_fact(self, *, body: types.FactCreate, idempotency_key: str | None = None) -> types.FactResult:
        """Assert a fact. A fact that is already stored gains evidence (200 instead of 201)."""
        return cast(
            "types.FactResult",
            await self._transport.request(
                "POST", "/v1/facts", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    async def search_facts(self, *, body: types.FactListing) -> types.FactPage:
        """List facts like `GET /v1/facts`, with the filters in the body: names of persons stay out of the address."""
        return cast(
            "types.FactPage",
            await self._transport.request("POST", "/v1/facts/search", "safe", query={}, headers={}, body=body),
        )

    async def get_fact(self, fact_id: str) -> types.Fact:
        """Read one fact, retracted or not."""
        return cast(
            "types.Fact",
            await self._transport.request("GET", f"/v1/facts/{quote(fact_id, safe='')}", "safe", query={}, headers={}),
        )

    async def update_fact(self, fact_id: str, *, body: types.FactUpdate) -> types.FactResult:
        """Correct a fact: it is retracted and replaced by another fact with an id of its own."""
        return cast(
            "types.FactResult",
            await self._transport.request(
                "PATCH", f"/v1/facts/{quote(fact_id, safe='')}", "unsent", query={}, headers={}, body=body
            ),
        )

    async def retract_fact(self, fact_id: str) -> types.FactResult:
        """Retract a fact that was never true. Its row stays for history and undo; a repeat changes nothing."""
        return cast(
            "types.FactResult",
            await self._transport.request(
                "DELETE", f"/v1/facts/{quote(fact_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def undo_fact(self, fact_id: str) -> types.FactResult:
        """Undo the last change of a fact: an assertion, an extraction, a correction, a retraction."""
        return cast(
            "types.FactResult",
            await self._transport.request(
                "POST", f"/v1/facts/{quote(fact_id, safe='')}/undo", "unsent", query={}, headers={}
            ),
        )

    async def extract_facts(self, conversation_id: str, *, body: types.FactsExtract) -> types.Extraction:
        """Extract facts now from the turns that were not processed yet, through a named one or all of them."""
        return cast(
            "types.Extraction",
            await self._transport.request(
                "POST",
                f"/v1/conversations/{quote(conversation_id, safe='')}/facts/extract",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    async def list_memories(
        self,
        *,
        agent_id: str | None = None,
        owner: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        x_agent_id: str | None = None,
    ) -> types.MemoryPage:
        """List memories by the time they were stored: of all agents for an administrator, else of the calling agent."""
        return cast(
            "types.MemoryPage",
            await self._transport.request(
                "GET",
                "/v1/memories",
                "safe",
                query={"agent_id": agent_id, "owner": owner, "order": order, "limit": limit, "cursor": cursor},
                headers={"X-Agent-Id": x_agent_id},
            ),
        )

    async def store_memory(
        self, *, body: types.MemoryStore, x_agent_id: str | None = None, idempotency_key: str | None = None
    ) -> types.MemoryStored:
        """Store a memory of the calling agent, which recall finds at once; without a vector nothing is stored."""
        return cast(
            "types.MemoryStored",
            await self._transport.request(
                "POST",
                "/v1/memories",
                "key",
                query={},
                headers={"X-Agent-Id": x_agent_id, "Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def search_memories(self, *, body: types.MemoryQuery, x_agent_id: str | None = None) -> types.MemoryEntries:
        """Recall the memories of the calling agent, the nearest first."""
        return cast(
            "types.MemoryEntries",
            await self._transport.request(
                "POST", "/v1/memories/search", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    async def filter_memories(self, *, body: types.MemoryListing, x_agent_id: str | None = None) -> types.MemoryPage:
        """List memories like `GET /v1/memories`, with the filters in the body: names of persons stay out of the address."""
        return cast(
            "types.MemoryPage",
            await self._transport.request(
                "POST", "/v1/memories/list", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    async def get_memory(self, memory_id: str, *, x_agent_id: str | None = None) -> types.Memory:
        """Read one memory: of any agent for an administrator, else of the calling agent."""
        return cast(
            "types.Memory",
            await self._transport.request(
                "GET", f"/v1/memories/{quote(memory_id, safe='')}", "safe", query={}, headers={"X-Agent-Id": x_agent_id}
            ),
        )

    async def delete_memory(self, memory_id: str) -> None:
        """Delete a memory of any agent; a missing memory is no error."""
        await self._transport.request(
            "DELETE", f"/v1/memories/{quote(memory_id, safe='')}", "safe", query={}, headers={}
        )

    async def before_turn(self, *, body: types.BeforeTurn, x_agent_id: str | None = None) -> types.TurnContext:
        """Return the model's input for the next turn of a session, within `max_input_tok`; nothing is stored."""
        return cast(
            "types.TurnContext",
            await self._transport.request(
                "POST", "/v1/lifecycle/before-turn", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    async def after_turn(self, *, body: types.AfterTurn) -> types.TurnDone:
        """Store a turn of a session, which is created at first use. A repeat changes nothing; the first body is kept."""
        return cast(
            "types.TurnDone",
            await self._transport.request("POST", "/v1/lifecycle/after-turn", "safe", query={}, headers={}, body=body),
        )

    async def run_turn(
        self, *, body: types.RunTurn, x_agent_id: str | None = None
    ) -> types.TurnPrepared | types.TurnDone:
        """Prepare a turn: store its input and return its context. With `operation_token`, store its output."""
        return cast(
            "types.TurnPrepared | types.TurnDone",
            await self._transport.request(
                "POST", "/v1/lifecycle/run-turn", "safe", query={}, headers={"X-Agent-Id": x_agent_id}, body=body
            ),
        )

    async def run_maintenance(self, *, body: types.SessionRequest) -> types.Maintained:
        """Summarise, erase and expire what is due in a session now. May be interrupted and sent again."""
        return cast(
            "types.Maintained",
            await self._transport.request("POST", "/v1/lifecycle/maintenance", "safe", query={}, headers={}, body=body),
        )

    async def list_memory_tree(self, *, body: types.TreeRequest) -> types.Tree:
        """List the memory of a session as a tree: days, context, facts by tier, and metadata."""
        return cast(
            "types.Tree",
            await self._transport.request("POST", "/v1/lifecycle/tree", "safe", query={}, headers={}, body=body),
        )

    async def generate(
        self, *, body: types.Generate, x_agent_id: str | None = None, idempotency_key: str | None = None
    ) -> types.Generated:
        """Let the chat model answer in a conversation, and store the new messages with the answer, in one commit."""
        return cast(
            "types.Generated",
            await self._transport.request(
                "POST",
                "/v1/generate",
                "key",
                query={},
                headers={"X-Agent-Id": x_agent_id, "Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def create_chat_completion(
        self,
        *,
        body: types.CreateChatCompletion,
        x_conversation_id: str | None = None,
        x_project: str | None = None,
        x_agent_id: str | None = None,
    ) -> types.Passed:
        """Create a chat completion in OpenAI's format, with `stream` as events."""
        return cast(
            "types.Passed",
            await self._transport.request(
                "POST",
                "/openai/v1/chat/completions",
                "unsent",
                query={},
                headers={"X-Conversation-Id": x_conversation_id, "X-Project": x_project, "X-Agent-Id": x_agent_id},
                body=body,
            ),
        )

    async def create_embedding(self, *, body: dict[str, types.JsonValue]) -> types.Passed:
        """Create embeddings with the model's endpoint; request and answer pass unchanged."""
        return cast(
            "types.Passed",
            await self._transport.request("POST", "/openai/v1/embeddings", "unsent", query={}, headers={}, body=body),
        )

    async def list_models(self) -> types.Passed:
        """List the models of the endpoint, unchanged."""
        return cast(
            "types.Passed", await self._transport.request("GET", "/openai/v1/models", "safe", query={}, headers={})
        )

    async def get_model(self, model: str) -> types.Passed:
        """Read one model of the endpoint, unchanged."""
        return cast(
            "types.Passed",
            await self._transport.request(
                "GET", f"/openai/v1/models/{quote(model, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def create_openai_conversation(
        self, *, body: types.NewConversation | None | None = None, idempotency_key: str | None = None
    ) -> types.OpenAIConversation:
        """Create a conversation, with or without items."""
        return cast(
            "types.OpenAIConversation",
            await self._transport.request(
                "POST",
                "/openai/v1/conversations",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def get_openai_conversation(self, conversation_id: str) -> types.OpenAIConversation:
        """Read one conversation."""
        return cast(
            "types.OpenAIConversation",
            await self._transport.request(
                "GET", f"/openai/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def update_openai_conversation(
        self, conversation_id: str, *, body: types.ChangedConversation
    ) -> types.OpenAIConversation:
        """Replace the metadata of a conversation."""
        return cast(
            "types.OpenAIConversation",
            await self._transport.request(
                "POST",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    async def delete_openai_conversation(self, conversation_id: str) -> types.DeletedConversation:
        """Delete a conversation with everything derived from it."""
        return cast(
            "types.DeletedConversation",
            await self._transport.request(
                "DELETE", f"/openai/v1/conversations/{quote(conversation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def list_openai_items(
        self,
        conversation_id: str,
        *,
        after: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        include: list[str] | None = None,
    ) -> types.Items:
        """List the items of a conversation; turns of any origin are shown as items."""
        return cast(
            "types.Items",
            await self._transport.request(
                "GET",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items",
                "safe",
                query={"after": after, "order": order, "limit": limit, "include": include},
                headers={},
            ),
        )

    async def create_openai_items(
        self, conversation_id: str, *, body: types.NewItems, include: list[str] | None = None
    ) -> types.Items:
        """Append items of OpenAI's Responses, all or none; each becomes a turn and is returned unchanged."""
        return cast(
            "types.Items",
            await self._transport.request(
                "POST",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items",
                "unsent",
                query={"include": include},
                headers={},
                body=body,
            ),
        )

    async def get_openai_item(
        self, item_id: str, conversation_id: str, *, include: list[str] | None = None
    ) -> types.Passed:
        """Read one item."""
        return cast(
            "types.Passed",
            await self._transport.request(
                "GET",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items/{quote(item_id, safe='')}",
                "safe",
                query={"include": include},
                headers={},
            ),
        )

    async def delete_openai_item(self, item_id: str, conversation_id: str) -> types.OpenAIConversation:
        """Erase an item with all items of its turn, and all other revisions of that turn; tombstones stay."""
        return cast(
            "types.OpenAIConversation",
            await self._transport.request(
                "DELETE",
                f"/openai/v1/conversations/{quote(conversation_id, safe='')}/items/{quote(item_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    async def create_response(
        self,
        *,
        body: types.CreateResponse,
        x_conversation_id: str | None = None,
        x_project: str | None = None,
        x_agent_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> types.OpenAIResponse:
        """Create a response in OpenAI's format, with `stream` as events."""
        return cast(
            "types.OpenAIResponse",
            await self._transport.request(
                "POST",
                "/openai/v1/responses",
                "key",
                query={},
                headers={
                    "X-Conversation-Id": x_conversation_id,
                    "X-Project": x_project,
                    "X-Agent-Id": x_agent_id,
                    "Idempotency-Key": idempotency_key,
                },
                body=body,
            ),
        )

    async def get_response(
        self,
        response_id: str,
        *,
        stream: bool | None = None,
        starting_after: int | None = None,
        include: list[str] | None = None,
    ) -> types.OpenAIResponse:
        """Read one response. With `stream` its events so far are sent, and those to come while it is in progress."""
        return cast(
            "types.OpenAIResponse",
            await self._transport.request(
                "GET",
                f"/openai/v1/responses/{quote(response_id, safe='')}",
                "safe",
                query={"stream": stream, "starting_after": starting_after, "include": include},
                headers={},
            ),
        )

    async def delete_response(self, response_id: str) -> types.DeletedResponse:
        """Delete a response; in a conversation that was created for responses, its input and output are erased too."""
        return cast(
            "types.DeletedResponse",
            await self._transport.request(
                "DELETE", f"/openai/v1/responses/{quote(response_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def cancel_response(self, response_id: str) -> types.OpenAIResponse:
        """Abort a response that is in progress; its text so far is kept in an aborted turn."""
        return cast(
            "types.OpenAIResponse",
            await self._transport.request(
                "POST", f"/openai/v1/responses/{quote(response_id, safe='')}/cancel", "unsent", query={}, headers={}
            ),
        )

    async def list_response_input_items(
        self,
        response_id: str,
        *,
        after: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        include: list[str] | None = None,
    ) -> types.Items:
        """List the items that were stored as the input of a response."""
        return cast(
            "types.Items",
            await self._transport.request(
                "GET",
                f"/openai/v1/responses/{quote(response_id, safe='')}/input_items",
                "safe",
                query={"after": after, "order": order, "limit": limit, "include": include},
                headers={},
            ),
        )

    async def ask_agent(
        self, *, body: types.AskAgent, x_agent_id: str | None = None, idempotency_key: str | None = None
    ) -> types.AgentAnswer:
        """Ask the agent, which answers from earlier turns, conversations and memories with its granted tools."""
        return cast(
            "types.AgentAnswer",
            await self._transport.request(
                "POST",
                "/v1/agent/ask",
                "key",
                query={},
                headers={"X-Agent-Id": x_agent_id, "Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def list_erasures(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.ErasurePage:
        """List the receipts of erasures, newest first. They are kept, and have no personal data. Needs `admin`."""
        return cast(
            "types.ErasurePage",
            await self._transport.request(
                "GET", "/v1/erasures", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    async def create_erasure(self, *, body: types.ErasureCreate, idempotency_key: str | None = None) -> types.Operation:
        """Erase all data of a conversation, an owner, an actor or a tenant. Needs the scope `admin`."""
        return cast(
            "types.Operation",
            await self._transport.request(
                "POST", "/v1/erasures", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    async def get_erasure(self, erasure_id: str) -> types.Erasure:
        """Read the receipt of an erasure; its progress is that of the operation with the same id. Needs `admin`."""
        return cast(
            "types.Erasure",
            await self._transport.request(
                "GET", f"/v1/erasures/{quote(erasure_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def verify_erasure(self, *, body: types.ReceiptCheck) -> types.ReceiptVerification:
        """Check that this installation signed a receipt, and that it is about a given subject. Needs `admin`."""
        return cast(
            "types.ReceiptVerification",
            await self._transport.request("POST", "/v1/erasures/verify", "safe", query={}, headers={}, body=body),
        )

    async def look_up_owner(self, *, body: types.OwnerLookup) -> types.OwnerView:
        """List all that is stored under an owner: conversations, facts and memories of all agents."""
        return cast(
            "types.OwnerView",
            await self._transport.request("POST", "/v1/owners/lookup", "safe", query={}, headers={}, body=body),
        )

    async def export_conversation(
        self,
        conversation_id: str,
        *,
        created_at: str | None = None,
        checkpoints: bool | None = None,
        cursor: str | None = None,
    ) -> bytes:
        """Export a conversation with its turns, summaries and facts as lines of JSON."""
        return cast(
            "bytes",
            await self._transport.request(
                "GET",
                f"/v1/conversations/{quote(conversation_id, safe='')}/export",
                "safe",
                query={"created_at": created_at, "checkpoints": checkpoints, "cursor": cursor},
                headers={},
                is_bytes=True,
            ),
        )

    async def export_data(self, *, body: types.ExportCreate) -> bytes:
        """Export a project, or all data of the tenant, as lines of JSON. Needs the scopes `read` and `admin`."""
        return cast(
            "bytes",
            await self._transport.request(
                "POST", "/v1/export", "unsent", query={}, headers={}, body=body, is_bytes=True
            ),
        )

    async def import_data(
        self, *, body: bytes, dry_run: bool | None = None, source: types.ForeignSystem | Literal["auto"] | None = None
    ) -> types.Operation:
        """Import lines of an export, plain or in gzip. Needs the scope `admin`. Answers with an operation, at `Location`."""
        return cast(
            "types.Operation",
            await self._transport.request(
                "POST", "/v1/import", "unsent", query={"dry_run": dry_run, "source": source}, headers={}, body=body
            ),
        )

    async def list_operations(
        self,
        *,
        kind: str | None = None,
        status: types.OperationStatus | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.OperationPage:
        """List operations, newest first: those of the tenant for an administrator, else those that this key started."""
        return cast(
            "types.OperationPage",
            await self._transport.request(
                "GET",
                "/v1/operations",
                "safe",
                query={"kind": kind, "status": status, "order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    async def get_operation(self, operation_id: str) -> types.Operation:
        """Read the state, progress and result of an operation. It is kept for a day after its end (setting)."""
        return cast(
            "types.Operation",
            await self._transport.request(
                "GET", f"/v1/operations/{quote(operation_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def cancel_operation(self, operation_id: str) -> types.Operation:
        """Cancel an operation: it ends after its present step, and what it has done so far stays."""
        return cast(
            "types.Operation",
            await self._transport.request(
                "POST", f"/v1/operations/{quote(operation_id, safe='')}/cancel", "unsent", query={}, headers={}
            ),
        )

    async def list_keys(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.KeyPage:
        """List the tenant's keys, newest first, without their secrets. Needs the scope `admin`."""
        return cast(
            "types.KeyPage",
            await self._transport.request(
                "GET", "/v1/admin/keys", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    async def create_key(self, *, body: types.KeyCreate, idempotency_key: str | None = None) -> types.KeyMade:
        """Create a key with some of the caller's own scopes. Needs the scope `admin`."""
        return cast(
            "types.KeyMade",
            await self._transport.request(
                "POST", "/v1/admin/keys", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    async def rotate_key(
        self, key_id: str, *, body: types.KeyRotate, idempotency_key: str | None = None
    ) -> types.KeyMade:
        """Give a key a new secret; the old one is valid for `grace_s` more seconds. Needs `admin` and the key's scopes."""
        return cast(
            "types.KeyMade",
            await self._transport.request(
                "POST",
                f"/v1/admin/keys/{quote(key_id, safe='')}/rotate",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def revoke_key(self, key_id: str, *, force: bool | None = None) -> None:
        """Revoke a key permanently; every replica refuses it within a second. Needs `admin` and the key's scopes."""
        await self._transport.request(
            "DELETE", f"/v1/admin/keys/{quote(key_id, safe='')}", "safe", query={"force": force}, headers={}
        )

    async def list_tenants(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.TenantPage:
        """List all tenants, newest first. Needs the scope `operator`."""
        return cast(
            "types.TenantPage",
            await self._transport.request(
                "GET", "/v1/admin/tenants", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    async def create_tenant(self, *, body: types.TenantCreate, idempotency_key: str | None = None) -> types.TenantMade:
        """Create a tenant with its first key (read, write, admin). Needs the scope `operator`."""
        return cast(
            "types.TenantMade",
            await self._transport.request(
                "POST", "/v1/admin/tenants", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    async def get_tenant(self, tenant_id: str) -> types.Tenant:
        """Read one tenant. Needs the scope `operator`."""
        return cast(
            "types.Tenant",
            await self._transport.request(
                "GET", f"/v1/admin/tenants/{quote(tenant_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def update_tenant(self, tenant_id: str, *, body: types.TenantUpdate) -> types.Tenant:
        """Rename a tenant. Needs the scope `operator`."""
        return cast(
            "types.Tenant",
            await self._transport.request(
                "PATCH", f"/v1/admin/tenants/{quote(tenant_id, safe='')}", "unsent", query={}, headers={}, body=body
            ),
        )

    async def get_limits(self) -> types.LimitsView:
        """Return the limits of the tenant, and what it has used of its quotas today. Needs the scope `admin`."""
        return cast(
            "types.LimitsView", await self._transport.request("GET", "/v1/admin/limits", "safe", query={}, headers={})
        )

    async def get_tenant_limits(self, tenant_id: str) -> types.LimitsView:
        """Return the limits of a tenant, and what it has used of its quotas today. Needs the scope `operator`."""
        return cast(
            "types.LimitsView",
            await self._transport.request(
                "GET", f"/v1/admin/tenants/{quote(tenant_id, safe='')}/limits", "safe", query={}, headers={}
            ),
        )

    async def set_tenant_limits(self, tenant_id: str, *, body: types.TenantLimits) -> types.LimitsView:
        """Set the limits of a tenant: its quotas, and the rates of each of its keys. Needs the scope `operator`."""
        return cast(
            "types.LimitsView",
            await self._transport.request(
                "PUT", f"/v1/admin/tenants/{quote(tenant_id, safe='')}/limits", "safe", query={}, headers={}, body=body
            ),
        )

    async def get_key_limits(self, key_id: str) -> types.KeyLimitsView:
        """Return the rates of a key. Needs the scope `admin`."""
        return cast(
            "types.KeyLimitsView",
            await self._transport.request(
                "GET", f"/v1/admin/keys/{quote(key_id, safe='')}/limits", "safe", query={}, headers={}
            ),
        )

    async def set_key_limits(self, key_id: str, *, body: types.Rates) -> types.KeyLimitsView:
        """Lower the rates of another key than the caller's. Needs the scope `admin`."""
        return cast(
            "types.KeyLimitsView",
            await self._transport.request(
                "PUT", f"/v1/admin/keys/{quote(key_id, safe='')}/limits", "safe", query={}, headers={}, body=body
            ),
        )

    async def get_stats(
        self, *, of: Literal["tenant", "installation"] | None = None, top: int | None = None
    ) -> types.Stats:
        """Return statistics of the caller's tenant, or of the installation. Needs the scope `admin`."""
        return cast(
            "types.Stats",
            await self._transport.request("GET", "/v1/admin/stats", "safe", query={"of": of, "top": top}, headers={}),
        )

    async def list_model_usage(
        self,
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        purpose: types.ModelPurpose | None = None,
        all_tenants: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.ModelUsageDayPage:
        """List the tokens used by chat models by day, purpose and model, newest day first. Needs the scope `admin`."""
        return cast(
            "types.ModelUsageDayPage",
            await self._transport.request(
                "GET",
                "/v1/admin/usage",
                "safe",
                query={
                    "first_day": first_day,
                    "last_day": last_day,
                    "purpose": purpose,
                    "all_tenants": all_tenants,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    async def get_own_key(self) -> types.OwnKey:
        """Return what the key or access token of this request is, and what it may do. Needs no scope."""
        return cast("types.OwnKey", await self._transport.request("GET", "/v1/keys/self", "safe", query={}, headers={}))

    async def list_jobs(
        self,
        *,
        kind: str | None = None,
        state: types.JobState | None = None,
        all_tenants: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.JobViewPage:
        """List unfinished jobs, newest first. Finished jobs are deleted."""
        return cast(
            "types.JobViewPage",
            await self._transport.request(
                "GET",
                "/v1/admin/jobs",
                "safe",
                query={
                    "kind": kind,
                    "state": state,
                    "all_tenants": all_tenants,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    async def count_jobs(self, *, all_tenants: bool | None = None) -> types.JobCounts:
        """Return the number of unfinished jobs, by kind and state, and when the next of each kind is due."""
        return cast(
            "types.JobCounts",
            await self._transport.request(
                "GET", "/v1/admin/jobs/counts", "safe", query={"all_tenants": all_tenants}, headers={}
            ),
        )

    async def get_job(self, job_id: str, *, all_tenants: bool | None = None) -> types.JobView:
        """Read one job that has not finished, such as a parked one with its error."""
        return cast(
            "types.JobView",
            await self._transport.request(
                "GET",
                f"/v1/admin/jobs/{quote(job_id, safe='')}",
                "safe",
                query={"all_tenants": all_tenants},
                headers={},
            ),
        )

    async def retry_job(self, job_id: str, *, all_tenants: bool | None = None) -> types.JobView:
        """Run a parked, cancelled or waiting job now, with all its attempts."""
        return cast(
            "types.JobView",
            await self._transport.request(
                "POST",
                f"/v1/admin/jobs/{quote(job_id, safe='')}/retry",
                "unsent",
                query={"all_tenants": all_tenants},
                headers={},
            ),
        )

    async def cancel_job(self, job_id: str, *, all_tenants: bool | None = None) -> types.JobView:
        """Cancel a job. A running job stops within a lease; its writes stay."""
        return cast(
            "types.JobView",
            await self._transport.request(
                "POST",
                f"/v1/admin/jobs/{quote(job_id, safe='')}/cancel",
                "unsent",
                query={"all_tenants": all_tenants},
                headers={},
            ),
        )

    async def list_audit_entries(
        self,
        *,
        action: types.Action | None = None,
        key_id: str | None = None,
        object_kind: types.ObjectKind | None = None,
        object_id: str | None = None,
        conversation_id: str | None = None,
        request_id: str | None = None,
        since: str | None = None,
        until: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.AuditEntryPage:
        """List the audit entries of the key's tenant by time, newest first. Needs the scope `admin`."""
        return cast(
            "types.AuditEntryPage",
            await self._transport.request(
                "GET",
                "/v1/admin/audit",
                "safe",
                query={
                    "action": action,
                    "key_id": key_id,
                    "object_kind": object_kind,
                    "object_id": object_id,
                    "conversation_id": conversation_id,
                    "request_id": request_id,
                    "since": since,
                    "until": until,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    async def verify_audit(self, *, body: types.AuditVerify) -> types.AuditVerification:
        """Verify the hash chains of the tenant's audit, as `turnkeep audit verify` does. Needs the scope `admin`."""
        return cast(
            "types.AuditVerification",
            await self._transport.request("POST", "/v1/admin/audit/verify", "unsent", query={}, headers={}, body=body),
        )

    async def list_spaces(self) -> types.EmbeddingSpaces:
        """List the embedding spaces with their states and how far they are filled. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpaces",
            await self._transport.request("GET", "/v1/admin/embedding-spaces", "safe", query={}, headers={}),
        )

    async def add_space(self, *, body: types.SpaceAdd) -> types.EmbeddingSpace:
        """Start to fill the space of the second configured embedder. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            await self._transport.request(
                "POST", "/v1/admin/embedding-spaces", "unsent", query={}, headers={}, body=body
            ),
        )

    async def roll_back_space(self) -> types.EmbeddingSpace:
        """Search the space again that was searched before the last switch. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            await self._transport.request(
                "POST", "/v1/admin/embedding-spaces/rollback", "unsent", query={}, headers={}
            ),
        )

    async def compare_space(self, space_id: str, *, body: types.SpaceComparison) -> types.SpaceComparisonResult:
        """Run queries in a space and in the searched one, in the key's tenant. Needs the scope `operator`."""
        return cast(
            "types.SpaceComparisonResult",
            await self._transport.request(
                "POST",
                f"/v1/admin/embedding-spaces/{quote(space_id, safe='')}/compare",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    async def switch_space(self, space_id: str, *, body: types.SpaceSwitch) -> types.EmbeddingSpace:
        """Search a space from now on, on every replica within a second. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            await self._transport.request(
                "POST",
                f"/v1/admin/embedding-spaces/{quote(space_id, safe='')}/switch",
                "unsent",
                query={},
                headers={},
                body=body,
            ),
        )

    async def drop_space(self, space_id: str) -> types.EmbeddingSpace:
        """Delete a space's vectors and its vector index, in the background. Needs the scope `operator`."""
        return cast(
            "types.EmbeddingSpace",
            await self._transport.request(
                "DELETE", f"/v1/admin/embedding-spaces/{quote(space_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def get_samples(self, *, minutes: int | None = None) -> types.MetricSamples:
        """Return figures of the process that answers, one sample for each ten seconds. Needs the scope `operator`."""
        return cast(
            "types.MetricSamples",
            await self._transport.request("GET", "/v1/admin/samples", "safe", query={"minutes": minutes}, headers={}),
        )

    async def list_replicas(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.ReplicaViewPage:
        """List the running servers and workers, the one that started first first. Needs the scope `operator`."""
        return cast(
            "types.ReplicaViewPage",
            await self._transport.request(
                "GET",
                "/v1/admin/replicas",
                "safe",
                query={"order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    async def list_slow_calls(
        self,
        *,
        all_tenants: bool | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.SlowCallPage:
        """List the slow HTTP requests of the process that answers, latest first: where their time went, never content."""
        return cast(
            "types.SlowCallPage",
            await self._transport.request(
                "GET",
                "/v1/admin/slow-calls",
                "safe",
                query={"all_tenants": all_tenants, "order": order, "limit": limit, "cursor": cursor},
                headers={},
            ),
        )

    async def list_webhooks(
        self, *, order: Literal["asc", "desc"] | None = None, limit: int | None = None, cursor: str | None = None
    ) -> types.WebhookPage:
        """List the tenant's webhooks, newest first, without their secrets. Needs the scope `admin`."""
        return cast(
            "types.WebhookPage",
            await self._transport.request(
                "GET", "/v1/webhooks", "safe", query={"order": order, "limit": limit, "cursor": cursor}, headers={}
            ),
        )

    async def create_webhook(
        self, *, body: types.WebhookCreate, idempotency_key: str | None = None
    ) -> types.WebhookMade:
        """Create a webhook: events are sent to its URL, signed with its secret. Needs the scope `admin`."""
        return cast(
            "types.WebhookMade",
            await self._transport.request(
                "POST", "/v1/webhooks", "key", query={}, headers={"Idempotency-Key": idempotency_key}, body=body
            ),
        )

    async def get_webhook(self, webhook_id: str) -> types.Webhook:
        """Read one webhook, without its secret. Needs the scope `admin`."""
        return cast(
            "types.Webhook",
            await self._transport.request(
                "GET", f"/v1/webhooks/{quote(webhook_id, safe='')}", "safe", query={}, headers={}
            ),
        )

    async def update_webhook(self, webhook_id: str, *, body: types.WebhookUpdate) -> types.Webhook:
        """Change a webhook, or disable and enable it. Needs the scope `admin`."""
        return cast(
            "types.Webhook",
            await self._transport.request(
                "PATCH", f"/v1/webhooks/{quote(webhook_id, safe='')}", "unsent", query={}, headers={}, body=body
            ),
        )

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries. Needs the scope `admin`."""
        await self._transport.request(
            "DELETE", f"/v1/webhooks/{quote(webhook_id, safe='')}", "safe", query={}, headers={}
        )

    async def rotate_webhook_secret(
        self, webhook_id: str, *, body: types.SecretRotate, idempotency_key: str | None = None
    ) -> types.WebhookMade:
        """Give a webhook a new secret; deliveries have both signatures for `grace_s` more seconds. Needs `admin`."""
        return cast(
            "types.WebhookMade",
            await self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/rotate-secret",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def send_test_event(self, webhook_id: str, *, idempotency_key: str | None = None) -> types.Delivery:
        """Send an event of type `webhook.test` once, also if the webhook is disabled. Needs the scope `admin`."""
        return cast(
            "types.Delivery",
            await self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/test",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
            ),
        )

    async def list_deliveries(
        self,
        webhook_id: str,
        *,
        status: types.DeliveryStatus | None = None,
        type: types.EventType | Literal["webhook.test"] | None = None,
        conversation_id: str | None = None,
        since: str | None = None,
        until: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> types.DeliveryPage:
        """List a webhook's deliveries, newest event first. `status=dead` lists the dead letters. Needs `admin`."""
        return cast(
            "types.DeliveryPage",
            await self._transport.request(
                "GET",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries",
                "safe",
                query={
                    "status": status,
                    "type": type,
                    "conversation_id": conversation_id,
                    "since": since,
                    "until": until,
                    "order": order,
                    "limit": limit,
                    "cursor": cursor,
                },
                headers={},
            ),
        )

    async def get_delivery(self, webhook_id: str, delivery_id: str) -> types.Delivery:
        """Read one delivery. Needs the scope `admin`."""
        return cast(
            "types.Delivery",
            await self._transport.request(
                "GET",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries/{quote(delivery_id, safe='')}",
                "safe",
                query={},
                headers={},
            ),
        )

    async def replay_deliveries(
        self, webhook_id: str, *, body: types.ReplayRequest, idempotency_key: str | None = None
    ) -> types.Operation:
        """Send all dead deliveries since a time again, or those in other states. Needs the scope `admin`."""
        return cast(
            "types.Operation",
            await self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries/replay",
                "key",
                query={},
                headers={"Idempotency-Key": idempotency_key},
                body=body,
            ),
        )

    async def replay_delivery(self, webhook_id: str, delivery_id: str) -> types.Delivery:
        """Send an event again, in any status, with the same id and all its retries. Needs the scope `admin`."""
        return cast(
            "types.Delivery",
            await self._transport.request(
                "POST",
                f"/v1/webhooks/{quote(webhook_id, safe='')}/deliveries/{quote(delivery_id, safe='')}/replay",
                "unsent",
                query={},
                headers={},
            ),
        )

    async def get_health(self) -> types.Health:
        """Return whether the process answers."""
        return cast("types.Health", await self._transport.request("GET", "/healthz", "safe", query={}, headers={}))

    async def get_readiness(self) -> types.Health:
        """Return whether requests can be served: the database answers and the model is loaded."""
        return cast("types.Health", await self._transport.request("GET", "/readyz", "safe", query={}, headers={}))

    async def get_metrics(self) -> bytes:
        """Return metrics in the text format of Prometheus, or in that of OpenMetrics, with exemplars, if `Accept` asks so."""
        return cast(
            "bytes", await self._transport.request("GET", "/metrics", "safe", query={}, headers={}, is_bytes=True)
        )
