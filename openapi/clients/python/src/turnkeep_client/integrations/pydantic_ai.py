"""The message history of Pydantic AI agents (`pip install turnkeep-client[pydantic-ai]`).

`load` and `save` keep the messages of `ModelMessagesTypeAdapter` exactly. A message is one turn of the conversation, or
two if a request has results of tools and a prompt: so people, recall and contexts read it like any conversation.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from turnkeep_client.client import Turnkeep
from turnkeep_client.generated import types
from turnkeep_client.integrations.history import ConversationHistory
from turnkeep_client.integrations.messages import (
    Call,
    Shown,
    continues_message,
    message_of,
    shown_of,
    turns_of,
)

_FRAMEWORK: Final = "pydantic-ai"


class TurnkeepMessages:
    """The messages of the conversation with this external id.

    `agent.run(prompt, message_history=await messages.load())`, then `await messages.save(result.new_messages())`.
    """

    def __init__(
        self,
        external_id: str,
        turnkeep: Turnkeep | None = None,
        *,
        owner: str | None = None,
        project: str | None = None,
    ) -> None:
        self._history = ConversationHistory(turnkeep or Turnkeep(), external_id, owner=owner, project=project)

    async def load(self, limit: int | None = None) -> list[ModelMessage]:
        """Return the messages of the newest `limit` turns in chronological order; all of them without a limit."""
        turns = await asyncio.to_thread(self._history.turns, limit)
        return _messages(turns)

    async def save(self, messages: Sequence[ModelMessage]) -> None:
        """Append messages: those of `result.new_messages()`. Called again after a failure, it stores nothing twice."""
        given = cast("list[dict[str, object]]", ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))
        turns = [
            turn
            for message, one in zip(messages, given, strict=True)
            for turn in turns_of(_FRAMEWORK, one, list(_shown(message)))
        ]
        await asyncio.to_thread(self._history.append, turns)

    async def context(self, prompt: str, token_budget: int, **options: object) -> list[ModelMessage]:
        """Return a history that fits the budget: the newest turns, a summary of older ones, what the prompt recalls.

        Pass it as `message_history`. `options` are the other fields of the context request, such as
        `include_memories=True` or `semantic_recall={"k": 10, "scope": "owner"}`.
        """
        return await asyncio.to_thread(self._context, prompt, token_budget, options)

    async def clear(self) -> None:
        """Delete the conversation with everything derived from it."""
        await asyncio.to_thread(self._history.clear)

    def _context(self, prompt: str, token_budget: int, options: Mapping[str, object]) -> list[ModelMessage]:
        asked = {"query": prompt, "semantic_recall": {"k": 5}, **options, "format": "openai"}
        conversation = self._history.turnkeep.conversation_by_id(self._history.conversation_id)
        context = conversation.context(token_budget, **asked)
        return list(_from_shown(map(_shown_message, cast("list[dict[str, object]]", context["messages"]))))


def _messages(turns: Iterable[types.Turn]) -> list[ModelMessage]:
    found: list[ModelMessage] = []
    foreign: list[Shown] = []
    for turn in turns:
        given = message_of(_FRAMEWORK, turn)
        if given is None:
            foreign += [] if continues_message(_FRAMEWORK, turn) else [shown_of(turn)]
            continue
        found += [*_from_shown(foreign), *ModelMessagesTypeAdapter.validate_python([given])]
        foreign = []
    return [*found, *_from_shown(foreign)]


def _shown(message: ModelMessage) -> Iterator[Shown]:
    """Yield what a message says: results of tools, and then the prompt, or else the answer with its calls."""
    if isinstance(message, ModelResponse):
        texts = [part.content for part in message.parts if isinstance(part, TextPart)]
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        shown = (Call(call.tool_call_id, call.tool_name, call.args_as_json_str()) for call in calls)
        yield Shown("assistant", "\n".join(texts), tuple(shown))
        return
    results: list[tuple[str, str]] = []
    prompts: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolReturnPart):
            results.append((part.tool_call_id, part.model_response_str()))
        elif isinstance(part, RetryFeedbackPart):
            prompts.append(part.model_response())
        elif isinstance(part, UserPromptPart):
            prompts.append(_prompt_text(part))
    if len(results) == 1:
        yield Shown("tool", results[0][1], call_id=results[0][0])
    elif results:
        yield Shown("tool", results=tuple(results))
    if prompts or not results:
        yield Shown("user", "\n".join(prompts))


def _prompt_text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(one if isinstance(one, str) else _piece_text(one) for one in part.content)


def _piece_text(piece: object) -> str:
    """Return the text of a piece of a prompt; of an image or a file its kind."""
    text, kind = getattr(piece, "content", None), getattr(piece, "kind", "file")
    return text if isinstance(text, str) else f"[{kind}]"


def _shown_message(message: Mapping[str, object]) -> Shown:
    calls = message.get("tool_calls") or ()
    turn = {**message, "tool_calls": calls, "tool_call_id": message.get("tool_call_id"), "tool_results": ()}
    return shown_of(cast("types.Turn", {"content": None, **turn}))


def _from_shown(messages: Iterable[Shown]) -> Iterator[ModelMessage]:
    """Yield messages that say the same; a result has the name of the tool that was called before it."""
    names: dict[str, str] = {}
    for shown in messages:
        names |= {call.id: call.name for call in shown.calls}
        if shown.role == "assistant":
            said: list[ModelResponsePart] = [TextPart(shown.text)] if shown.text else []
            calls = [ToolCallPart(call.name, call.arguments, call.id) for call in shown.calls]
            yield ModelResponse([*said, *calls])
        else:
            yield ModelRequest([_request_part(shown, names)])


def _request_part(shown: Shown, names: Mapping[str, str]) -> ModelRequestPart:
    if shown.role == "tool":
        call_id = shown.call_id or ""
        return ToolReturnPart(names.get(call_id, "unknown"), shown.text, call_id)
    return SystemPromptPart(shown.text) if shown.role == "system" else UserPromptPart(shown.text)
