"""The door of formats: one provider's message shape in, turns out, and the reverse. Pure.

`parse` reads messages into turns and `write` gives the very messages back; `render` writes canonical turns for a model,
which is another thing: it shows no call without its result, and nothing of another provider's that is not words.
Always holds: a call is only ever written together with its result; nothing blank is written where a provider refuses
it; the same blocks give the same messages. Which formats merge neighbours or add an opening is hidden here.
"""

from collections.abc import Sequence
from typing import assert_never

from app.core.errors import Invalid
from app.formats import checking
from app.formats.extra_fields import is_silent
from app.formats.parse import anthropic as from_anthropic
from app.formats.parse import canonical as from_canonical
from app.formats.parse import openai as from_openai
from app.formats.parse import openai_responses as from_responses
from app.formats.parse import validation
from app.formats.parts import fenced, has_content, parts_of, plain, result_text
from app.formats.render import anthropic, canonical, openai, openai_responses, workers_ai
from app.formats.schemas import (
    Block,
    CanonicalTurn,
    Fault,
    Format,
    JsonObject,
    Kind,
    ParsedTurn,
    Rendered,
    Repaired,
    Role,
    TurnLike,
    Written,
)
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
from app.formats.turns import canonical_of, tool_call_of, tool_result_of
from app.formats.units import units_of
from app.formats.viewpoint import seen_by

__all__ = [
    "Margin",
    "RememberingCounter",
    "TextCounter",
    "canonical_of",
    "check",
    "count_render",
    "fenced",
    "finish",
    "has_content",
    "has_media",
    "is_exact",
    "is_silent",
    "items_of",
    "margin_of",
    "message_tokens",
    "messages_of",
    "opening",
    "parse",
    "render",
    "repair",
    "roles_with_several_speakers",
    "seen_by",
    "text_of",
    "tool_call_of",
    "tool_result_of",
    "write",
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


def parse(
    source: Format, messages: object, *, system: object = None, root: str = "/messages", system_root: str = "/system"
) -> list[ParsedTurn]:
    """Read a provider's messages, or the items of OpenAI Responses, into turns, in order.

    `system` is the text that Anthropic has beside its messages (blocks too), or `instructions`: a turn in front.
    `root` and `system_root` are where both stand in the request. Raises Invalid with a pointer to the first wrong
    field: `invalid_request`, `json_too_deep`, `text_not_storable`, `number_not_interoperable`. What a
    sequence breaks is not looked at: see `check` and `repair`.
    """
    given = validation.checked_objects(messages, root)
    first = from_anthropic.parse_system(source, system, system_root)
    return [*first, *(turn for index, one in enumerate(given) for turn in parse_one(source, one, f"{root}/{index}"))]


def write(target: Format, turns: Sequence[TurnLike]) -> Written:
    """Write turns as the messages of a format, each by itself: the reverse of `parse`.

    A turn that was parsed from this format (its `adapter` says so) gives the very message back, as long as that says
    what the turn says; any other gives what says the same, and nothing where it holds another provider's own items.
    """
    match target:
        case Format.OPENAI | Format.WORKERS_AI:
            return Written([message for turn in turns for message in from_openai.messages_of(target, turn)])
        case Format.OPENAI_RESPONSES:
            return Written([item for turn in turns for item in items_of(turn)])
        case Format.ANTHROPIC:
            return from_anthropic.write(turns)
        case Format.CANONICAL:
            return Written([from_canonical.message_of(turn) for turn in turns])
    assert_never(target)


def items_of(turn: TurnLike) -> list[JsonObject]:
    """The OpenAI Responses items of a turn: the very item that it was parsed from, else those that say the same."""
    return from_responses.items_of(turn)


def check(source: Format, messages: object, *, root: str = "/messages") -> list[Fault]:
    """Name what the provider would refuse in these messages, in order, each with a pointer; empty where nothing.

    Raises Invalid only where they are no list of JSON objects. The names are those of `checking.DETAILS`, and
    `malformed` for a message that cannot be read.
    """
    given = validation.checked_objects(messages, root)
    read: list[list[ParsedTurn] | Invalid] = []
    for index, message in enumerate(given):
        try:
            read.append(parse_one(source, message, f"{root}/{index}"))
        except Invalid as refused:
            read.append(refused)
    return list(checking.faults(source, given, read, root))


def repair(source: Format, messages: object, *, system: str | None = None, root: str = "/messages") -> Repaired:
    """What the provider accepts of these messages: paired, merged and rendered as a context is. Raises as `parse`."""
    turns = parse(source, messages, root=root)
    paired = units_of([canonical_of(turn, position=at, turn_id=str(at)) for at, turn in enumerate(turns, 1)])
    blocks = [block for unit in paired.units for block in unit.blocks]
    rendered = render(source, system=system, blocks=blocks)
    return Repaired(rendered.messages, rendered.system, tuple(left.reason for left in paired.left_out))


def parse_one(source: Format, message: JsonObject, at: str) -> list[ParsedTurn]:
    """Read one message, which is checked JSON and stands at the pointer `at`, into its turns. Raises as `parse`."""
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
