"""Messages given in a format come back in a context of this format, but for a listed set of members.

`TURNKEEP_PROPERTY_EXAMPLES=5000` is the long form: this many histories for each format.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.conversations.drafts import make_draft
from app.conversations.schemas.conversations import TurnInput
from app.formats.schemas import CanonicalTurn, Format
from app.formats.service import parse_single_message, render, roles_with_several_speakers
from app.formats.turns import to_canonical
from app.formats.units import group_turns
from app.formats.unsent import ASSISTANT_MEMBERS, UNSENT_BLOCKS, UNSENT_MEMBERS
from app.settings.conversations import LimitSettings
from tests.support.histories import UNSENT_ITEMS, History, history

FORMATS_PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "150"))
LIMITS = LimitSettings()


def stored(source: Format, messages: list[Any]) -> list[CanonicalTurn]:
    """The turns of messages as they come back from a database: by the rules of an append, through JSON."""
    turns: list[CanonicalTurn] = []
    parsed_turns = [turn for message in messages for turn in parse_single_message(source, message, "")]
    for position, parsed in enumerate(parsed_turns, 1):
        turn = TurnInput.model_validate(json.loads(json.dumps(parsed.members())))
        make_draft(turn, limits=LIMITS, now=datetime.now(UTC))
        turns.append(to_canonical(turn, position=position, turn_id=str(position)))
    return turns


def shown(
    source: Format, messages: list[Any], system: str | None = None, *, target: Format | None = None
) -> tuple[list[Any], str | None]:
    """The context of messages with room for everything, in their format or in another one (`target`)."""
    turns = stored(source, messages)
    blocks = [block for unit in group_turns(turns).units for block in unit.blocks]
    blocks.sort(key=lambda block: block.turn.position)
    target = target or source
    rendered = render(target, system=system, blocks=blocks, named=roles_with_several_speakers(turns))
    return [plain(target, message) for message in rendered.messages], rendered.system


def plain(source: Format, message: Any) -> Any:
    """A message without the members that the canonical format adds to each."""
    added = {"actor", "id", "kind", "occurred_at", "position"} if source is Format.CANONICAL else set[str]()
    return {name: value for name, value in message.items() if name not in added}


def dumps(messages: list[Any]) -> list[str]:
    return [json.dumps(message, sort_keys=True, ensure_ascii=False) for message in messages]


@pytest.mark.parametrize("source", list(Format))
def test_a_context_in_the_format_of_its_messages_has_them_as_they_were_given(source: Format) -> None:
    for seed in range(EXAMPLES):
        given: History = history(source, Random(seed))  # noqa: S311
        messages, system = shown(source, given.messages)
        assert dumps(messages) == dumps(given.shown), f"seed {seed}"
        assert system == given.system, f"seed {seed}"


@pytest.mark.parametrize("source", list(Format))
def test_a_context_can_be_appended_again_and_its_context_is_equal(source: Format) -> None:
    for seed in range(EXAMPLES // 2):
        given: History = history(source, Random(seed))  # noqa: S311
        messages, system = shown(source, given.messages)
        again, same_system = shown(source, messages, system)
        assert dumps(again) == dumps(messages), f"seed {seed}"
        assert system == same_system, f"seed {seed}"


def test_all_that_a_context_leaves_out_is_documented_with_its_reason() -> None:
    members = {name for places in UNSENT_MEMBERS.values() for names in places.values() for name in names}
    types = {name for names in UNSENT_BLOCKS.values() for name in names}
    _, _, section = FORMATS_PAGE.read_text().partition("## What a context leaves out")
    listed = section.partition("\n## ")[0]
    assert {name for name in members | types | UNSENT_ITEMS | ASSISTANT_MEMBERS if f"`{name}`" not in listed} == set()
