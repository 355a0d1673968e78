"""The tools for conversations: search, build a context, append, read, create, find, summarise."""

from dataclasses import replace

from app.agents.tools.schemas import AppendTurns, BuildContext, ConversationNames, GetHistory, RecallTool, Summarize
from app.agents.tools.tool import ADDS, READER, READS, WRITER, Group, Tool, ToolServices, tool
from app.context.schemas import Context
from app.conversations.schemas.conversations import AppendResult, Conversation, ConversationCreate, ListedConversation
from app.conversations.schemas.history import HistoryPage
from app.conversations.schemas.listing import ConversationSearch
from app.conversations.schemas.summaries import Compacted
from app.core.errors import NotFound
from app.core.ids import ConversationId, parse_id
from app.core.paging import Page
from app.recall.schemas import RecallResult
from app.tenancy.schemas import Caller, Scope


def conversation_tools() -> tuple[Tool, ...]:
    """Return the tools."""
    return (*_found_tools(), *_turn_tools(), *_whole_tools())


def _found_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "recall",
            RecallTool,
            RecallResult,
            _recall,
            title="Search conversations",
            description=(
                "Search what was said in stored conversations, by meaning and by words: turns and summaries, the best"
                " first. Narrow it with `conversation_ids`, `project`, `owner` or `filters` (actors, roles, times,"
                " metadata); without them everything is searched that the key may read. `neighbours` adds the turns"
                " around a hit."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
        tool(
            "build_context",
            BuildContext,
            Context,
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
            AppendResult,
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
            HistoryPage,
            _get_history,
            title="Read a conversation",
            description=(
                "Read the turns of a stored conversation as they were said: the newest page first, in chronological"
                " order. Name it by `conversation_id` or `external_id`. Give `next_cursor` back as `cursor` for the"
                " page before it. `order` asc starts at the first turn. Erased turns are shown as tombstones, with"
                " `erased_at` and without content."
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
            lambda services, caller, body: services.conversations.search(caller, request=body),
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


async def _recall(services: ToolServices, caller: Caller, body: RecallTool) -> RecallResult:
    if body.external_ids:
        project = body.project or "default"
        ids = [
            await services.conversations.id_of(caller, project=project, external_id=name) for name in body.external_ids
        ]
        body = body.model_copy(update={"conversation_ids": [*(body.conversation_ids or ()), *ids]})
    return await services.recall_service.recall(caller, request=body)


async def _build_context(services: ToolServices, caller: Caller, body: BuildContext) -> Context:
    return await services.contexts.build(caller, await found(services, caller, body), request=body)


async def _append_turns(services: ToolServices, caller: Caller, body: AppendTurns) -> AppendResult:
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
    return result.value


async def _get_history(services: ToolServices, caller: Caller, body: GetHistory) -> HistoryPage:
    conversation_id = await found(services, caller, body)
    caller.require_conversation(Scope.READ, conversation_id)
    return await services.conversations.history(caller, conversation_id, query=body.query())


async def _create_conversation(services: ToolServices, caller: Caller, body: ConversationCreate) -> Conversation:
    return (await services.conversations.create(caller, body=body)).value


async def _summarize(services: ToolServices, caller: Caller, body: Summarize) -> Compacted:
    conversation_id = await found(services, caller, body)
    return (await services.compactor.summarise(caller, conversation_id, request=body)).value
