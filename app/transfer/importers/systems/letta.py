"""Letta: the agent file (`.af`), with the messages of its agents and their memory blocks.

Source: https://docs.letta.com/guides/core-concepts/agent-file (`agents`, `blocks`, `files`, `tools`, …; an agent has
`id`, `name`, `messages` and `block_ids`), and the first version of the format, one agent with `core_memory`
(https://github.com/letta-ai/agent-file).

Each agent becomes a conversation, and its blocks memories of the agent. Tools, files, sources, groups and settings of
models are no conversation and stay in the file. Ids in an agent file are unique only in it: the name of the agent is a
part of the external id.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject, Role
from app.transfer.importers.building import (
    ForeignObject,
    TurnBuilder,
    call,
    conversation,
    item_part,
    memory,
    text_part,
    without_null,
)
from app.transfer.importers.json_cursor import JsonCursor

SYSTEM: Final = "letta"
_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "tool": Role.TOOL,
    "function": Role.TOOL,
    "approval": Role.ASSISTANT,
    "summary": Role.ASSISTANT,
}

_SAYS: Final = "send_message"


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield all agents, then their memories. A list is that of several agent files."""
    if isinstance(document.value, list):
        for place in document.items():
            if isinstance(place.value, dict):
                yield from _file(place)
            else:
                yield ForeignObject("conversation", place, partial(_named_agent, place))
        return
    yield from _file(document)


def _file(document: JsonCursor) -> Iterator[ForeignObject]:
    if document.get("agents") is None:
        yield from _first_version(document)
        return
    blocks = {name: block for block in document.objects_of("blocks") if (name := block.name_of("id")) is not None}
    memories: list[ForeignObject] = []
    attached: set[str] = set()
    for agent in document.objects_of("agents"):
        yield ForeignObject("conversation", agent, partial(_named_agent, agent), agent.name_of("name"))
        name = agent.name_of("name")
        for listed in agent.objects_of("block_ids"):
            identity = listed.value if isinstance(listed.value, str) else ""
            block = blocks.get(identity)
            if block is None:
                memories.append(ForeignObject("memory", listed, partial(_missing_block, listed), identity or None))
            elif name is not None:
                attached.add(identity)
                memories.append(_block(block, f"{name}/{identity}", name))
    yield from memories
    for block in document.objects_of("blocks"):
        identity = block.name_of("id")
        if identity is None or identity not in attached:
            yield _block(block, f"/{identity}", None)


def _missing_block(listed: JsonCursor) -> Iterator[JsonObject]:
    listed.name()
    yield from ()
    raise listed.error("the block is not in the file")


def _named_agent(agent: JsonCursor) -> Iterator[JsonObject]:
    name = agent.need("name").name()
    return _agent(agent, f"{name}/{agent.need('id').name()}", name)


def _first_version(document: JsonCursor) -> Iterator[ForeignObject]:
    name = document.name_of("name")

    def read() -> Iterator[JsonObject]:
        named = document.need("name").name()
        return _agent(document, named, named)

    yield ForeignObject("conversation", document, read, name)
    for block in document.objects_of("core_memory") if name is not None else ():
        yield _block(block, f"{name}/{block.name_of('label')}", name)


def _agent(agent: JsonCursor, external_id: str, name: str) -> Iterator[JsonObject]:
    about = without_null({key: agent.object().get(key) for key in ("description", "agent_type", "tags", "created_at")})
    yield conversation(
        external_id, title=name, metadata={SYSTEM: about} if about else None, created_at=agent.time_of("created_at")
    )
    builder = TurnBuilder(SYSTEM)
    yield from builder.read_all(
        agent.list_of("messages"), lambda message, number: _turns(builder, message, number, name)
    )


def _turns(builder: TurnBuilder, message: JsonCursor, number: int, agent: str) -> Iterator[JsonObject]:
    role_name = message.need("role").text()
    role, source_role = builder.role_of(role_name, _ROLES)
    name = message.text_of("id") or f"message-{number}"
    said_at = message.time_of("created_at", "date")
    actor = message.text_of("name") or (agent if role is Role.ASSISTANT else None)
    source_metadata: JsonObject = {
        "role": role_name if role_name in {"approval", "summary"} else None,
        "group_id": message.object().get("group_id"),
        "sender_id": message.object().get("sender_id"),
        **source_role,
    }
    returns = list(message.list_of("tool_returns"))
    if role is Role.TOOL and len(returns) > 1:
        for place in returns:
            identity = place.need("tool_call_id").name()
            text = place.text_of("func_response", "tool_return") or ""
            record = builder.turn(
                place,
                f"{name}/{identity}",
                role,
                text,
                actor=actor,
                occurred_at=said_at,
                answers=identity,
                source_metadata=source_metadata,
            )
            if record is not None:
                yield record
        return
    answered = message.text_of("tool_call_id")
    if answered is None and returns:
        answered = returns[0].text_of("tool_call_id")
    content, calls = _content(message), [_call(place) for place in message.list_of("tool_calls")]
    if content and any(tool_call["name"] == _SAYS for tool_call in calls):
        # an agent that speaks by a tool: its text is what it thinks
        parts = content if isinstance(content, list) else [text_part(str(content))]
        hidden: list[JsonValue] = [item_part(SYSTEM, part) for part in parts]
        content = hidden
    record = builder.turn(
        message,
        name,
        role,
        content,
        actor=actor,
        occurred_at=said_at,
        model=message.text_of("model"),
        calls=calls,
        answers=answered,
        source_metadata=source_metadata,
    )
    if record is not None:
        yield record


def _call(place: JsonCursor) -> JsonObject:
    function = place.need("function")
    return call(place.need("id").name(), function.need("name").name(), function.object().get("arguments"))


def _content(message: JsonCursor) -> JsonValue:
    content = message.get("content", "text")
    if content is None or isinstance(content.value, str):
        return None if content is None else content.value
    parts = list(content.items())
    if all(part.text_of("type") in {"text", None} and part.get("text") is not None for part in parts):
        return "\n".join(part.need("text").text() for part in parts)
    return [part.object() for part in parts]


def _block(block: JsonCursor, external_id: str, agent: str | None) -> ForeignObject:
    def read() -> Iterator[JsonObject]:
        value = block.need("value").text()
        if not value.strip():
            return
        block.need("id", "label")
        about = {key: block.object().get(key) for key in ("label", "description", "read_only", "metadata")}
        yield memory(
            external_id,
            value,
            agent_id=agent,
            owner=None,
            metadata={SYSTEM: without_null(about)},
            created_at=block.time_of("created_at"),
        )

    return ForeignObject("memory", block, read, block.name_of("id", "label"))
