"""The door of formats: canonical turns in, one provider's message shape out. Pure.

Always holds: a call is only ever written together with its result; nothing blank is written where a provider refuses
it; the same blocks give the same messages. Which formats merge neighbours or add an opening is hidden here.
"""

from collections.abc import Sequence
from typing import assert_never

from app.formats import anthropic, canonical, openai, openai_responses, workers_ai
from app.formats.parts import fenced, has_content, parts_of, plain, result_text
from app.formats.schemas import Block, CanonicalTurn, Format, JsonObject, Kind, Rendered, Role
from app.formats.tokens import (
    Margin,
    RememberingCounter,
    TextCounter,
    count_render,
    has_media,
    is_exact,
    margin_of,
    message_tokens,
)

__all__ = [
    "Margin",
    "RememberingCounter",
    "TextCounter",
    "count_render",
    "fenced",
    "finish",
    "has_content",
    "has_media",
    "is_exact",
    "margin_of",
    "message_tokens",
    "messages_of",
    "opening",
    "render",
    "roles_with_several_speakers",
    "text_of",
]


def render(
    target: Format, *, system: str | None, blocks: Sequence[Block], named: frozenset[Role] = frozenset()
) -> Rendered:
    """Render the blocks in order; `named` are the roles whose speakers must stay visible."""
    return finish(target, system=system, messages=[m for block in blocks for m in messages_of(target, block, named)])


def messages_of(target: Format, block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Write the messages of one block on its own, before `finish`; none when there is nothing to show."""
    match target:
        case Format.OPENAI:
            return openai.messages_of(block, named)
        case Format.OPENAI_RESPONSES:
            return openai_responses.messages_of(block, named)
        case Format.ANTHROPIC:
            return anthropic.messages_of(block, named)
        case Format.WORKERS_AI:
            return workers_ai.messages_of(block, named)
        case Format.CANONICAL:
            return canonical.messages_of(block, named)
    assert_never(target)


def finish(target: Format, *, system: str | None, messages: list[JsonObject]) -> Rendered:
    """Make whole what `messages_of` gave: the system text in its place, neighbours merged where roles alternate."""
    match target:
        case Format.OPENAI:
            return openai.finish(system, messages)
        case Format.OPENAI_RESPONSES:
            return openai_responses.finish(system, messages)
        case Format.ANTHROPIC:
            return anthropic.finish(system, messages)
        case Format.WORKERS_AI:
            return workers_ai.finish(system, messages)
        case Format.CANONICAL:
            return canonical.finish(system, messages)
    assert_never(target)


def opening(target: Format) -> list[JsonObject]:
    """Give what `finish` may put in front of the first turn."""
    return anthropic.opening() if target is Format.ANTHROPIC else []


def roles_with_several_speakers(turns: Sequence[CanonicalTurn]) -> frozenset[Role]:
    """Find the roles (user, assistant) that more than one actor speaks in."""
    spoken = {
        (turn.role, turn.actor)
        for turn in turns
        if turn.role in {Role.USER, Role.ASSISTANT} and turn.kind is not Kind.COMPACTION
    }
    roles = [role for role, _ in spoken]
    return frozenset(role for role in roles if roles.count(role) > 1)


def text_of(turn: CanonicalTurn) -> str:
    """Put what a turn says into plain text: its content, else its results, else the calls it asks for."""
    content = plain(parts_of(turn.content))
    if content:
        return content
    results = [text for result in turn.tool_results if (text := result_text(result))]
    return "\n".join(results or [f"[calls {call.name}]" for call in turn.tool_calls])
