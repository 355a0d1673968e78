"""Letta: the agent file (`.af`), with the messages of its agents and their memory blocks.

Source: https://docs.letta.com/guides/core-concepts/agent-file (`agents`, `blocks`, `files`, `tools`, …; an agent has
`id`, `name`, `messages` and `block_ids`), and the first version of the format, one agent with `core_memory`
(https://github.com/letta-ai/agent-file).

Each agent becomes a conversation, and its blocks memories of the agent. Tools, files, sources, groups and settings of
models are no conversation and stay in the file. Ids in an agent file are unique only in it: the name of the agent is a
part of the external id.
"""

from collections.abc import Iterator
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject, Role
from app.governance.importers.building import TurnBuilder, call, conversation, memory, without_null
from app.governance.importers.json_cursor import JsonCursor

SYSTEM: Final = "letta"
_ROLES: Final = {
    "user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "tool": Role.TOOL, "function": Role.TOOL,
    "approval": Role.ASSISTANT, "summary": Role.ASSISTANT,
}  # fmt: skip


def records(document: JsonCursor) -> Iterator[JsonObject]:
    """Yield the records of all agents, then their memories."""
    if document.get("agents") is None:
        yield from _first_version(document)
        return
    blocks = {block.need("id").name(): block for block in document.list_of("blocks")}
    memories: list[JsonObject] = []
    attached: set[str] = set()
    for agent in document.list_of("agents"):
        name = agent.need("name").name()
        yield from _agent(agent, f"{name}/{agent.need('id').name()}", name)
        for listed in agent.list_of("block_ids"):
            block = blocks.get(listed.name())
            if block is None:
                raise listed.error("the block is not in the file")
            attached.add(listed.name())
            memories += _block(block, f"{name}/{listed.name()}", name)
    for identity, block in blocks.items():
        if identity not in attached:
            memories += _block(block, f"/{identity}", None)
    yield from memories


def _first_version(document: JsonCursor) -> Iterator[JsonObject]:
    name = document.need("name").name()
    yield from _agent(document, name, name)
    for block in document.list_of("core_memory"):
        yield from _block(block, f"{name}/{block.need('label').name()}", name)


def _agent(agent: JsonCursor, external_id: str, name: str) -> Iterator[JsonObject]:
    about = without_null({key: agent.object().get(key) for key in ("description", "agent_type", "tags", "created_at")})
    yield conversation(external_id, title=name, metadata={SYSTEM: about} if about else None)
    builder = TurnBuilder(SYSTEM)
    for number, message in enumerate(agent.list_of("messages")):
        yield from _turns(builder, message, number, name)


def _turns(builder: TurnBuilder, message: JsonCursor, number: int, agent: str) -> Iterator[JsonObject]:
    given = message.need("role")
    role = _ROLES.get(given.text())
    if role is None:
        raise given.error("a role that Letta does not have")
    name = message.text_of("id") or f"message-{number}"
    said_at = message.time_of("created_at", "date")
    actor = message.text_of("name") or (agent if role is Role.ASSISTANT else None)
    source_metadata: JsonObject = {
        "role": given.value if given.value in {"approval", "summary"} else None,
        "group_id": message.object().get("group_id"), "sender_id": message.object().get("sender_id"),
    }  # fmt: skip
    returns = list(message.list_of("tool_returns"))
    if role is Role.TOOL and len(returns) > 1:
        for place in returns:
            identity = place.need("tool_call_id").name()
            text = place.text_of("func_response", "tool_return") or ""
            found = builder.turn(place, f"{name}/{identity}", role, text, actor=actor, occurred_at=said_at,
                                 answers=identity, source_metadata=source_metadata)  # fmt: skip
            if found is not None:
                yield found
        return
    answered = message.text_of("tool_call_id")
    if answered is None and returns:
        answered = returns[0].text_of("tool_call_id")
    found = builder.turn(
        message, name, role, _content(message), actor=actor, occurred_at=said_at, model=message.text_of("model"),
        calls=[_call(place) for place in message.list_of("tool_calls")], answers=answered,
        source_metadata=source_metadata,
    )  # fmt: skip
    if found is not None:
        yield found


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


def _block(block: JsonCursor, external_id: str, agent: str | None) -> Iterator[JsonObject]:
    value = block.need("value").text()
    if not value.strip():
        return
    about = without_null({key: block.object().get(key) for key in ("label", "description", "read_only", "metadata")})
    yield memory(
        external_id, value, agent_id=agent, owner=None, metadata={SYSTEM: about},
        created_at=block.time_of("created_at"),
    )  # fmt: skip
