"""Public API of formats: provider messages to turns and back. Pure.

`parse` reads messages into turns, and `write` returns the original messages. `render` writes canonical turns for a
model: it leaves out calls without results, and replaces other providers' items by text. Invariants: a call is only
written together with its result; no blank text is written for a provider that refuses it; the same blocks give the same
messages. Only this module knows which formats merge neighbours or add an opening message.
"""

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from app.formats.parse import anthropic as from_anthropic
from app.formats.parse import canonical as from_canonical
from app.formats.parse import openai as from_openai
from app.formats.parse import openai_responses as from_responses
from app.formats.parse.produced import admit_messages
from app.formats.parts import plain_content, plain_result
from app.formats.render.anthropic import AnthropicRenderer
from app.formats.render.base import Renderer
from app.formats.render.canonical import CanonicalRenderer
from app.formats.render.openai import OpenAiRenderer
from app.formats.render.openai_responses import ResponsesRenderer
from app.formats.render.workers_ai import WorkersAiRenderer
from app.formats.schemas import (
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    Kind,
    ParsedTurn,
    RenderedMessages,
    Role,
    TurnLike,
    WrittenMessages,
)
from app.formats.turns import to_canonical

_RENDERERS: Final[Mapping[Format, Renderer]] = {
    Format.OPENAI: OpenAiRenderer(),
    Format.OPENAI_RESPONSES: ResponsesRenderer(),
    Format.ANTHROPIC: AnthropicRenderer(),
    Format.WORKERS_AI: WorkersAiRenderer(),
    Format.CANONICAL: CanonicalRenderer(),
}


def render(
    target: Format, *, system: str | None, blocks: Sequence[Block], named: frozenset[Role] = frozenset()
) -> RenderedMessages:
    """Render the blocks in order; `named` are the roles whose speakers must be named."""
    rendered = [(block, messages_of(target, block, named)) for block in blocks]
    return finish(target, system=system, messages=arrange(target, rendered))


def messages_of(target: Format, block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Render the messages of one block, before `finish`. Returns none if the block has nothing to show."""
    return _RENDERERS[target].messages_of(block, named)


def arrange(target: Format, rendered: Sequence[tuple[Block, Sequence[JsonObject]]]) -> list[JsonObject]:
    """Return the results of `messages_of` for all blocks in the order of the format."""
    return _RENDERERS[target].arrange(rendered)


def finish(target: Format, *, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
    """Complete the result of `messages_of`: place the system text, and merge neighbours if roles must alternate."""
    return _RENDERERS[target].finish(system, messages)


def opening(target: Format) -> list[JsonObject]:
    """Return the messages that `finish` may put before the first turn."""
    return _RENDERERS[target].leading_messages()


def roles_with_several_speakers(turns: Sequence[CanonicalTurn]) -> frozenset[Role]:
    """Return the roles (user, assistant) in which more than one actor speaks."""
    spoken = {
        (turn.role, turn.actor)
        for turn in turns
        if turn.role in {Role.USER, Role.ASSISTANT} and turn.kind is not Kind.COMPACTION
    }
    roles = [role for role, _ in spoken]
    return frozenset(role for role in roles if roles.count(role) > 1)


def text_of(turn: CanonicalTurn) -> str:
    """Return the plain text of a turn: its content and its results; a turn that has neither, its calls by name.

    Passages and dates are delimited by code points of this text.
    """
    pieces = [plain_content(turn.content), *map(plain_result, turn.tool_results)]
    said = [piece for piece in pieces if piece.strip()]
    return "\n".join(said or [f"[calls {call.name}]" for call in turn.tool_calls])


def parse(
    source: Format, messages: object, *, system: object = None, root: str = "/messages", system_root: str = "/system"
) -> list[ParsedTurn]:
    """Parse a provider's messages, or OpenAI Responses items, into turns, in order.

    `system` is Anthropic's separate system text (or blocks), or `instructions`; it becomes the first turn. `root` and
    `system_root` are the JSON pointers of both in the request. Raises Invalid with a pointer to the first wrong field:
    `invalid_request`, `json_too_deep`, `text_not_storable`, `number_not_interoperable`. The sequence of messages is not
    checked. What a model or a tool produced is not refused for its texts and numbers (`produced`).
    """
    admitted, _ = admit_messages(messages, root)
    turns = from_anthropic.parse_system(source, system, system_root)
    for index, message in enumerate(admitted):
        turns.extend(parse_single_message(source, message, f"{root}/{index}"))
    return turns


def write(target: Format, turns: Sequence[TurnLike]) -> WrittenMessages:
    """Write each turn as messages of a format: the reverse of `parse`.

    A turn parsed from this format (see its `adapter`) gives the original message, if the turn is unchanged. Any other
    turn gives an equivalent message, or none if it has only another provider's own items.
    """
    match target:
        case Format.ANTHROPIC:
            return from_anthropic.write(turns, lambda turn: _RENDERERS[target].messages_of_turn(to_canonical(turn)))
        case Format.CANONICAL:
            return WrittenMessages([from_canonical.message_of(turn) for turn in turns])
        case Format.OPENAI_RESPONSES | Format.OPENAI | Format.WORKERS_AI:
            return WrittenMessages([message for turn in turns for message in _written(target, turn)])
    assert_never(target)


def items_of(turn: TurnLike) -> list[JsonObject]:
    """Return the OpenAI Responses items of a turn: the original item, else equivalent ones."""
    return _written(Format.OPENAI_RESPONSES, turn)


def _written(target: Format, turn: TurnLike) -> list[JsonObject]:
    responses = target is Format.OPENAI_RESPONSES
    original = from_responses.original(turn) if responses else from_openai.original(target, turn)
    return [original] if original is not None else _RENDERERS[target].messages_of_turn(to_canonical(turn))


def parse_single_message(source: Format, message: JsonObject, at: str) -> list[ParsedTurn]:
    """Parse one message, which is checked JSON at the pointer `at`, into its turns. Raises like `parse`."""
    match source:
        case Format.OPENAI | Format.WORKERS_AI:
            return [from_openai.parse_message(source, message, at)]
        case Format.OPENAI_RESPONSES:
            return [from_responses.parse_item(message, at)]
        case Format.ANTHROPIC:
            return from_anthropic.parse_message(message, at)
        case Format.CANONICAL:
            return [from_canonical.parse_turn(message, at)]
    assert_never(source)
