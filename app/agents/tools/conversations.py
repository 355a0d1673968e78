"""The tools for conversations: search, build a context, append, read, create, find, summarise."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar, cast

from pydantic import BaseModel, JsonValue

from app.agents.tools.answers import (
    SLIM_NOTE,
    TEXT_LEVEL,
    ToolAnswer,
    answer_bytes,
    cut_turn,
    fit,
    fit_list,
    fit_part,
    fit_recall,
    fitting_count,
    slim,
    with_reasons,
)
from app.agents.tools.schemas import (
    AppendAnswer,
    AppendTurns,
    BuildContext,
    ContextAnswer,
    ConversationNames,
    GetHistory,
    HistoryAnswer,
    RecallAnswer,
    RecallTool,
    Summarize,
)
from app.agents.tools.tool import ADDS, READER, READS, WRITER, Group, Tool, ToolServices, tool
from app.context.schemas import Context
from app.conversations.schemas.conversations import (
    Conversation,
    ConversationCreate,
    ListedConversation,
    readable_text,
)
from app.conversations.schemas.history import HistoryPage
from app.conversations.schemas.listing import ConversationSearch
from app.conversations.schemas.summaries import Compacted
from app.core.errors import Invalid, NotFound
from app.core.ids import ConversationId, TurnId, parse_id
from app.core.paging import Page
from app.formats.schemas import JsonObject
from app.tenancy.schemas import Caller, Scope

_CONTEXT_TRIES: Final = 4
"""Times that a context is built again with a smaller budget: each brings the answer to nine tenths of the limit."""
_REASONS_SHARE: Final = 4
"""The part of an answer that the reasons for a context may take from the context itself."""
_ItemT = TypeVar("_ItemT", bound=BaseModel)
_CUT_PAGE: Final = (
    f"To keep the answer short, texts of more than {TEXT_LEVEL} characters are cut, and the page may have fewer turns"
    " than `limit`. Read a text on with get_history, turn_id, start and length; read further turns with next_cursor."
)


def conversation_tools() -> tuple[Tool, ...]:
    """Return the tools."""
    return (*_found_tools(), *_turn_tools(), *_whole_tools())


def _found_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "recall",
            RecallTool,
            RecallAnswer,
            _recall,
            title="Search conversations",
            description=(
                "Search what was said in stored conversations, by meaning and by words: turns and summaries, the best"
                " first. Narrow it with `conversation_ids`, `project`, `owner` or `filters` (actors, roles, times,"
                " metadata); without them everything is searched that the key may read. `neighbours` adds the turns"
                " around a hit. Of a long turn, `text` is the passage that matches, and `passage` says where it is:"
                " read more of the turn with get_history."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
        tool(
            "build_context",
            BuildContext,
            ContextAnswer,
            _build_context,
            title="Build a context",
            description=(
                "Build the message list for one model call from a stored conversation, never over `token_budget`: the"
                " newest turns verbatim, a summary of older ones, and where asked for earlier turns (semantic_recall)"
                " and memories that matter to `query`. `format` says for which provider."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
    )


def _turn_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "append_turns",
            AppendTurns,
            AppendAnswer,
            _append_turns,
            title="Append turns",
            description=(
                "Append 1 to 500 turns to a conversation, all or none; when this answers they are durable and found"
                " by recall. A conversation that is named by a new `external_id` is created. Give each turn an `id` to"
                " make a repeated call store nothing twice, and `expected_seq` to append only if there was no"
                " other append meanwhile. Turns are never overwritten."
            ),
            group=Group.CONVERSATION,
            hints=ADDS,
            access=replace(WRITER, by_token=True),
        ),
        tool(
            "get_history",
            GetHistory,
            HistoryAnswer,
            _get_history,
            title="Read a conversation",
            description=(
                "Read the turns of a stored conversation as they were said: the newest page first, in chronological"
                " order. Name it by `conversation_id` or `external_id`. Give `next_cursor` back as `cursor` for the"
                " page before it. `order` asc starts at the first turn. Erased turns are shown as tombstones, with"
                " `erased_at` and without content. Long texts are cut: with `turn_id`, `start` and `length` it reads a"
                " part of one turn."
            ),
            group=Group.CONVERSATION,
            hints=READS,
            access=replace(READER, by_token=True),
        ),
    )


def _whole_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "create_conversation",
            ConversationCreate,
            Conversation,
            _create_conversation,
            title="Create or get a conversation",
            description=(
                "Create a conversation, or get the one that has this `external_id` (your own name for it) in its"
                " project already. Other tools take the same `external_id`, or the `id` of the answer as"
                " `conversation_id`."
            ),
            group=Group.CONVERSATION,
            hints=ADDS | {"idempotent_hint": True},
        ),
        tool(
            "find_conversations",
            ConversationSearch,
            Page[ListedConversation],
            _find_conversations,
            title="Find conversations",
            description=(
                "Find stored conversations by `external_id`, `owner`, `participant`, `project`, `metadata`, times or"
                " words of the title, the one last written to first, each with its first and last message. All that is"
                " given must hold; without anything all are listed, a page at a time. To search what was said, use"
                " recall."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
        tool(
            "summarize",
            Summarize,
            Compacted,
            _summarize,
            title="Summarise a conversation",
            description=(
                "Summarise the older turns of a stored conversation now, through the turn `through` or all but the"
                " newest. Contexts show the summary in place of the turns, which stay in the history. Jobs do this"
                " when a conversation grows long, so it is seldom needed. Called again, it finds nothing left to do."
            ),
            group=Group.CONVERSATION,
            hints=ADDS | {"idempotent_hint": True},
        ),
    )


async def found(services: ToolServices, caller: Caller, names: ConversationNames) -> ConversationId:
    """Return the id of the named conversation. Raises NotFound if there is none."""
    if names.conversation_id is not None:
        return ConversationId(names.conversation_id)
    if names.external_id is None:
        raise NotFound("not_found", "No conversation is named.")
    project = names.project or "default"
    return await services.conversations.id_of(caller, project=project, external_id=names.external_id)


async def found_or_created(
    services: ToolServices, caller: Caller, names: ConversationNames, *, owner: str | None = None
) -> ConversationId:
    """Return the id of the named conversation; create it for a new external_id, with this owner.

    Raises Conflict `conversation_owned` for a conversation of another owner.
    """
    if names.conversation_id is not None or caller.bound is not None:
        conversation_id = await found(services, caller, names)
        await services.sessions.require_owner(caller, conversation_id, owner=owner)
        return conversation_id
    caller.require(Scope.WRITE)
    create = ConversationCreate(external_id=names.external_id, project=names.project or "default", owner=owner)
    conversation = (await services.conversations.create(caller, body=create)).value
    return ConversationId(parse_id(conversation.id))


async def _recall(services: ToolServices, caller: Caller, body: RecallTool) -> ToolAnswer:
    if body.external_ids:
        project = body.project or "default"
        ids = [
            await services.conversations.id_of(caller, project=project, external_id=name) for name in body.external_ids
        ]
        body = body.model_copy(update={"conversation_ids": [*(body.conversation_ids or ()), *ids]})
    result = await services.recall_service.recall(caller, request=body)
    return ToolAnswer(fit_recall(result.model_dump(mode="json"), max_bytes=services.max_answer_bytes))


async def _build_context(services: ToolServices, caller: Caller, body: BuildContext) -> ToolAnswer:
    """Build the context; with a smaller budget, if the answer is too long."""
    conversation_id = await found(services, caller, body)
    context = await services.contexts.build(caller, conversation_id, request=body)
    max_bytes = services.max_answer_bytes
    room = max_bytes - max_bytes // _REASONS_SHARE * body.explain
    shown, rows = _without_reasons(context)
    budget, cut = body.token_budget, None
    for _ in range(_CONTEXT_TRIES):
        if (size := answer_bytes(shown)) <= room:
            break
        # of the tokens that are used, since the budget may be far larger
        budget = min(budget, context.usage.used) * room * 9 // (size * 10)
        try:
            smaller = body.model_copy(update={"token_budget": budget})
            context = await services.contexts.build(caller, conversation_id, request=smaller)
        except Invalid:  # less than the system text needs
            break
        shown, rows = _without_reasons(context)
        cut = f"To keep the answer short, it was built for {budget} tokens. POST /v1/…/context builds larger ones."
    shown, cut_texts = fit(shown, max_bytes=room)
    shown, cut_rows = with_reasons(shown, rows, max_bytes=max_bytes)
    notes = [note for note in (cut, cut_texts, cut_rows) if note is not None]
    return ToolAnswer({**shown, "cut": " ".join(notes)} if notes else shown)


def _without_reasons(context: Context) -> tuple[JsonObject, JsonValue]:
    shown: JsonObject = context.model_dump(mode="json")
    return {**shown, "explain": None}, shown["explain"]


async def fit_page(read: Callable[[int], Awaitable[Page[_ItemT]]], limit: int, *, max_bytes: int) -> Page[_ItemT]:
    """Return a page that fits, of fewer items if it has to. `read` reads one of at most so many items."""
    while True:
        page = await read(limit)
        shown: JsonObject = page.model_dump(mode="json")
        count = len(page.data)
        if count <= 1 or answer_bytes(shown) <= max_bytes:
            return page
        limit = min(count - 1, fitting_count(shown, cast("list[JsonValue]", shown["data"]), max_bytes=max_bytes))


async def _find_conversations(
    services: ToolServices, caller: Caller, body: ConversationSearch
) -> Page[ListedConversation]:
    def read(limit: int) -> Awaitable[Page[ListedConversation]]:
        return services.conversations.search(caller, request=body.model_copy(update={"limit": limit}))

    return await fit_page(read, body.limit, max_bytes=services.max_answer_bytes)


async def _append_turns(services: ToolServices, caller: Caller, body: AppendTurns) -> ToolAnswer:
    conversation_id = await found_or_created(services, caller, body, owner=body.owner)
    caller.require_conversation(Scope.WRITE, conversation_id)
    result = await services.conversations.append(
        caller,
        conversation_id,
        turns=body.turns,
        expected_seq=body.expected_seq,
        is_import=body.is_import,
        sanitised=body.sanitised,
    )
    answer = result.value.model_dump(mode="json")
    how = "All are stored: read them with get_history."
    return ToolAnswer(fit_list(answer, "turns", max_bytes=services.max_answer_bytes, how=how))


async def _get_history(services: ToolServices, caller: Caller, body: GetHistory) -> ToolAnswer:
    """Read a page; a shorter one, if the answer is too long. Its cursor leads on from the turns that it shows."""
    conversation_id = await found(services, caller, body)
    caller.require_conversation(Scope.READ, conversation_id)
    if body.turn_id is not None:
        return await _read_part(services, caller, conversation_id, body, TurnId(body.turn_id))
    max_bytes = services.max_answer_bytes
    query = body.query()
    while True:
        page = await services.conversations.history(caller, conversation_id, query=query)
        shown: JsonObject = page.model_dump(mode="json")
        if answer_bytes(shown) <= max_bytes:
            return ToolAnswer(shown)
        shown = cast("JsonObject", slim(shown))
        if answer_bytes(shown) <= max_bytes:
            return ToolAnswer({**shown, "cut": f"To keep the answer short, {SLIM_NOTE}."})
        turns = cast("list[JsonObject]", shown["data"])
        shown["data"] = cast("JsonValue", [cut_turn(turn) for turn in turns])
        if len(turns) <= 1 or (size := answer_bytes(shown)) <= max_bytes:
            shown, cut = fit(shown, max_bytes=max_bytes)
            return ToolAnswer({**shown, "cut": _CUT_PAGE if cut is None else f"{cut} {_CUT_PAGE}"})
        query = replace(query, limit=max(1, min(len(turns) - 1, len(turns) * max_bytes // size)))


async def _read_part(
    services: ToolServices, caller: Caller, conversation_id: ConversationId, body: GetHistory, turn_id: TurnId
) -> ToolAnswer:
    turn = await services.conversations.turn(caller, conversation_id, turn_id=turn_id)
    bare = turn.model_copy(update={"content": None, "tool_calls": [], "tool_results": []})
    page = HistoryPage(object="list", data=[bare], has_more=False, next_cursor=None, summaries=[], rev=turn.rev)
    shown, _ = fit(page.model_dump(mode="json"), max_bytes=services.max_answer_bytes // 2)
    text, max_bytes = readable_text(turn), services.max_answer_bytes
    part = fit_part(shown, text, start=body.start, length=body.length, max_bytes=max_bytes)
    return ToolAnswer(part)


async def _create_conversation(services: ToolServices, caller: Caller, body: ConversationCreate) -> Conversation:
    return (await services.conversations.create(caller, body=body)).value


async def _summarize(services: ToolServices, caller: Caller, body: Summarize) -> Compacted:
    conversation_id = await found(services, caller, body)
    return (await services.compactor.summarise(caller, conversation_id, request=body)).value
