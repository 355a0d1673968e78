"""The memory of a session as a tree: days, context, facts by tier, and metadata.

The tree is not stored; each node is read from the data. It is for people and models that browse, so each text is
bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from app.agents.lifecycle.paths import RECENT, ROOTS, SUMMARY, format_path, parse_path, path_not_found
from app.agents.lifecycle.schemas import MAX_ENTRIES, NodeText, Tree, TreeEntry, TreeRequest
from app.conversations.schemas.conversations import Conversation
from app.conversations.schemas.sessions import SessionDay, SessionName
from app.conversations.schemas.summaries import Summary
from app.conversations.service import Conversations, Sessions, Summaries
from app.core.errors import NotFound
from app.core.ids import ConversationId, parse_id
from app.core.times import format_time
from app.formats.schemas import CanonicalTurn
from app.formats.service import text_of
from app.memory.schemas import Fact, Tier, fact_text
from app.memory.service import FactService
from app.tenancy.schemas import Caller, Scope

_ABSTRACT: Final = 200
_DAY_TURNS: Final = 500
_MAX_FACTS: Final = 500
_MAX_CHARACTERS: Final = 2**18
_TIER_DESCRIPTIONS: Final = {
    Tier.L1: "what was said in passing",
    Tier.L2: "what was said again",
    Tier.L3: "what is kept",
}


@dataclass(frozen=True, slots=True)
class _Node:
    """A node: its path steps, a one-line description, and its text; None if the text lists the nodes below it."""

    steps: tuple[str, ...]
    abstract: str
    updated_at: datetime
    text: str | None = None


class MemoryTreeReader:
    """Reads the memory of sessions as a tree."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        sessions: Sessions,
        summaries: Summaries,
        facts: FactService,
        recent_items: int,
    ) -> None:
        self._conversations = conversations
        self._sessions = sessions
        self._summaries = summaries
        self._facts = facts
        self._recent_items = recent_items

    async def tree(self, caller: Caller, *, request: TreeRequest) -> Tree:
        """Return the nodes below a path. Raises Invalid for an invalid path, NotFound for an unknown one."""
        caller.require(Scope.READ)
        steps = parse_path(request.path, request.session_id)
        conversation = await self._session(caller, request.project, request.session_id)
        nodes = [
            node
            for root in ROOTS
            if not steps or steps[0] == root
            for node in await self._nodes(caller, conversation, request.session_id, root)
        ]
        if steps and all(node.steps != steps for node in nodes):
            raise path_not_found()
        deepest = len(steps) + request.depth
        shown = [node for node in nodes if node.steps[: len(steps)] == steps and len(node.steps) <= deepest]
        return Tree(
            summaries=[
                TreeEntry(
                    path=format_path(request.session_id, *node.steps),
                    abstract=_line(node.abstract),
                    updated_at=node.updated_at,
                    has_overview=node.text is not None,
                )
                for node in shown[: request.limit]
            ]
        )

    async def read(self, caller: Caller, *, project: str, session_id: str, path: str) -> NodeText:
        """Return one node as text. Raises as `tree` does."""
        caller.require(Scope.READ)
        steps = parse_path(path, session_id)
        conversation = await self._session(caller, project, session_id)
        if not steps:
            nodes = [node for root in ROOTS for node in await self._nodes(caller, conversation, session_id, root)]
            lines = [f"{format_path(session_id, *node.steps)}: {_line(node.abstract)}" for node in nodes]
            return NodeText(path=format_path(session_id), text="\n".join(lines), updated_at=conversation.updated_at)
        if steps[0] not in ROOTS:
            raise path_not_found()
        nodes = await self._nodes(caller, conversation, session_id, steps[0])
        node = next((node for node in nodes if node.steps == steps), None)
        if node is None:
            raise path_not_found()
        text = node.text
        if steps[0] == "events" and len(steps) > 1:
            text = await self._day(caller, conversation, steps[1])
        elif steps == ("context", RECENT):
            turns = await self._conversations.recent(caller, _id(conversation), limit=self._recent_items)
            text = "\n".join(map(_turn_line, turns))
        elif text is None:
            below = [f"- {'/'.join(child.steps)}: {_line(child.abstract)}" for child in nodes if len(child.steps) > 1]
            text = "\n".join([node.abstract, *below])
        return NodeText(path=format_path(session_id, *steps), text=text[:_MAX_CHARACTERS], updated_at=node.updated_at)

    async def _session(self, caller: Caller, project: str, session_id: str) -> Conversation:
        session = await self._sessions.find(caller, name=SessionName(project, session_id))
        if session is None:
            raise NotFound("not_found", "There is no such session.")
        return await self._conversations.get(caller, session.conversation_id)

    async def _nodes(self, caller: Caller, conversation: Conversation, session_id: str, root: str) -> list[_Node]:
        """Return a node directly below the session, and the nodes below it."""
        match root:
            case "events":
                return await self._events(caller, conversation)
            case "context":
                return await self._context(caller, conversation)
            case "memory_tiers":
                return await self._memory_tiers(caller, conversation)
            case _:
                return [_meta(conversation, session_id)]

    async def _events(self, caller: Caller, conversation: Conversation) -> list[_Node]:
        days = await self._sessions.days(caller, _id(conversation), limit=MAX_ENTRIES, words=_ABSTRACT)
        about = f"what was said, by day (UTC): {conversation.turn_count} turns"
        return [
            _Node(("events",), about, conversation.updated_at),
            *(_Node(("events", day.day.isoformat()), _day_abstract(day), day.last_at, text="") for day in days),
        ]

    async def _context(self, caller: Caller, conversation: Conversation) -> list[_Node]:
        page = await self._summaries.list_page(
            caller, _id(conversation), include_replaced=False, newest_first=False, limit=MAX_ENTRIES, cursor=None
        )
        summaries, at = page.data, conversation.updated_at
        recent = min(self._recent_items, conversation.turn_count)
        nodes = [_Node(("context",), "what a model is shown of the session", at)]
        if summaries:
            newest = max(summary.created_at for summary in summaries)
            abstract = summaries[-1].abstract or summaries[-1].text
            nodes.append(_Node(("context", SUMMARY), abstract, newest, _text_of(summaries)))
        return [*nodes, _Node(("context", RECENT), f"the newest {recent} turns, verbatim", at, text="")]

    async def _memory_tiers(self, caller: Caller, conversation: Conversation) -> list[_Node]:
        facts = await self._facts.newest(
            caller,
            owner=conversation.owner,
            project=None if conversation.owner is None else conversation.project,
            conversation_id=_id(conversation) if conversation.owner is None else None,
            actors=None,
            limit=_MAX_FACTS,
        )
        scope = "of this session" if conversation.owner is None else f"about {conversation.owner}"
        nodes = [_Node(("memory_tiers",), f"{len(facts)} facts {scope}", _latest(facts, conversation))]
        for tier in Tier:
            facts_of_tier = [fact for fact in facts if fact.tier is tier]
            lines = [fact_text(fact.subject, fact.predicate, fact.object) for fact in facts_of_tier]
            about = f"{_TIER_DESCRIPTIONS[tier]}: {len(facts_of_tier)} facts{': ' if lines else ''}{'; '.join(lines)}"
            text = "\n".join(_fact_line(fact) for fact in facts_of_tier) if facts_of_tier else None
            nodes.append(_Node(("memory_tiers", tier.value), about, _latest(facts_of_tier, conversation), text))
        return nodes

    async def _day(self, caller: Caller, conversation: Conversation, day: str) -> str:
        turns, more = await self._sessions.day(caller, _id(conversation), day=date.fromisoformat(day), limit=_DAY_TURNS)
        return "\n".join([*map(_turn_line, turns), *(["(and more)"] if more else [])])


def _id(conversation: Conversation) -> ConversationId:
    return ConversationId(parse_id(conversation.id))


def _line(text: str) -> str:
    """Return a text as one short line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _ABSTRACT else f"{flat[: _ABSTRACT - 1].rstrip()}…"


def _day_abstract(day: SessionDay) -> str:
    opening = f": {day.first_words}" if day.first_words else ""
    return f"{day.turns} turns of {', '.join(sorted(day.actors))}{opening}"


def _text_of(summaries: Sequence[Summary]) -> str:
    return "\n\n".join(
        f"Turns {summary.from_position} to {summary.to_position} ({summary.kind.value}):\n{summary.text}"
        for summary in summaries
    )


def _meta(conversation: Conversation, session_id: str) -> _Node:
    facts = {
        "session": session_id,
        "project": conversation.project,
        "conversation": conversation.id,
        "owner": conversation.owner or "",
        "created": format_time(conversation.created_at),
        "updated": format_time(conversation.updated_at),
        "turns": conversation.turn_count,
        "tokens": conversation.token_count,
        "participants": ", ".join(participant.actor for participant in conversation.participants),
        "retention": conversation.retention.value,
        "summarized_through": conversation.summarized_through or "",
        "head_hash": conversation.head_hash,
    }
    of = f" of {conversation.owner}" if conversation.owner else ""
    about = f"{conversation.turn_count} turns{of}, {conversation.token_count} tokens, since {facts['created'][:10]}"  # pyright: ignore[reportIndexIssue, reportUnknownVariableType]
    return _Node(
        ("meta",), about, conversation.updated_at, "\n".join(f"{key}: {value}" for key, value in facts.items())
    )


def _latest(facts: Sequence[Fact], conversation: Conversation) -> datetime:
    return max((fact.recorded_at for fact in facts), default=conversation.created_at)


def _fact_line(fact: Fact) -> str:
    said = fact_text(fact.subject, fact.predicate, fact.object)
    return f"{said} (since {fact.valid_from:%Y-%m-%d}, evidence {fact.evidence_count}, id {fact.id})"


def _turn_line(turn: CanonicalTurn) -> str:
    when = "" if turn.occurred_at is None else f"{turn.occurred_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC, "
    return f"[{when}{' '.join(turn.actor.split())}] {text_of(turn)}"
