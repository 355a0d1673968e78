"""Conversations of the LoCoMo shape: sessions of dated turns between two people, and questions with their evidence.

Chats of a person with an assistant are read, too: a list of `{id, turns, questions}`, whose turns have `id`, `session`,
`date`, `role` and `text`, and whose questions name the turns that answer them by these ids.

The file is read where the caller has it; it is CC BY-NC, so none of it is ever part of this project or of a report.
What is done to it, as its own evaluation does: a picture's caption is appended to the turn that shares it; evidence ids
are repaired ("D8:6; D9:17" are two, "D:11:26" and "D30:05" are D11:26 and D30:5) and dropped where no turn has them.
A session has one time for all of its turns, so these are spaced by 30 s from there, in UTC.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel, JsonValue, TypeAdapter

CATEGORIES: Final[Mapping[int | str, str]] = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
ADVERSARIAL: Final = 5
TURN_SPACING: Final = timedelta(seconds=30)

_SESSION: Final = re.compile(r"session_(\d+)")
_EVIDENCE: Final = re.compile(r"D:?(\d+):(\d+)")
_WHEN: Final = "%I:%M %p on %d %B, %Y"
_DAY: Final = "%B-%d-%Y"
ASSISTANT: Final = "assistant"


class _RawTurn(BaseModel):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None


class _RawQuestion(BaseModel):
    question: str
    category: int
    evidence: list[str] = []
    answer: str | int | None = None


class _RawDialogue(BaseModel):
    sample_id: str
    conversation: dict[str, JsonValue]
    qa: list[_RawQuestion]


class _ChatTurn(BaseModel):
    id: int
    session: int
    date: str
    role: str
    text: str


class _ChatQuestion(BaseModel):
    question: str
    category: str
    evidence: list[int]


class _RawChat(BaseModel):
    id: str
    turns: list[_ChatTurn]
    questions: list[_ChatQuestion]


_FILE = TypeAdapter(list[_RawDialogue] | list[_RawChat])
_TURNS = TypeAdapter(list[_RawTurn])


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """One turn; `key` is the dataset's id, by which evidence names it. `role`: `user` between people."""

    key: str
    actor: str
    text: str
    occurred_at: datetime
    session: int
    role: str = "user"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the keys of all turns that answer it; empty where the dataset names none that exists.

    `answer`: its gold answer, None for questions that the dialogue does not answer.
    """

    text: str
    category: int | str
    evidence: tuple[str, ...]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation of two speakers over many sessions, in order."""

    name: str
    speakers: tuple[str, str]
    turns: list[SpokenTurn]
    questions: list[Question]


def read_dialogues(path: Path) -> list[Dialogue]:
    """Read a file. Raises pydantic's ValidationError when it has another shape, ValueError on a date it cannot read."""
    return [
        _chat(raw) if isinstance(raw, _RawChat) else _dialogue(raw) for raw in _FILE.validate_json(path.read_bytes())
    ]


def _chat(raw: _RawChat) -> Dialogue:
    started: dict[int, int] = {}
    turns: list[SpokenTurn] = []
    for place, turn in enumerate(raw.turns):
        day = datetime.strptime(turn.date, _DAY).replace(tzinfo=UTC)
        when = day + (place - started.setdefault(turn.session, place)) * TURN_SPACING
        turns.append(SpokenTurn(f"D{turn.session}:{turn.id}", turn.role, turn.text, when, turn.session, turn.role))
    keys = {turn.id: said.key for turn, said in zip(raw.turns, turns, strict=True)}
    questions = [
        Question(asked.question, asked.category, tuple(dict.fromkeys(keys[at] for at in asked.evidence if at in keys)))
        for asked in raw.questions
    ]
    return Dialogue(raw.id, ("user", ASSISTANT), turns, questions)


def _dialogue(raw: _RawDialogue) -> Dialogue:
    numbers = sorted(int(found[1]) for key in raw.conversation if (found := _SESSION.fullmatch(key)))
    turns = [turn for number in numbers for turn in _session(raw.conversation, number)]
    known = {turn.key for turn in turns}
    questions = [
        Question(
            asked.question,
            asked.category,
            repaired(asked.evidence, known),
            None if asked.answer is None or asked.category == ADVERSARIAL else str(asked.answer),
        )
        for asked in raw.qa
    ]
    speakers = (str(raw.conversation["speaker_a"]), str(raw.conversation["speaker_b"]))
    return Dialogue(raw.sample_id, speakers, turns, questions)


def _session(conversation: dict[str, JsonValue], number: int) -> list[SpokenTurn]:
    spoken = _TURNS.validate_python(conversation[f"session_{number}"] or [])
    if not spoken:
        return []
    when = str(conversation[f"session_{number}_date_time"])
    start = datetime.strptime(when, _WHEN).replace(tzinfo=UTC)
    return [
        SpokenTurn(turn.dia_id, turn.speaker, _text(turn), start + index * TURN_SPACING, number)
        for index, turn in enumerate(spoken)
    ]


def _text(turn: _RawTurn) -> str:
    return f"{turn.text} [shares a photo: {turn.blip_caption}]" if turn.blip_caption else turn.text


def repaired(evidence: list[str], known: set[str]) -> tuple[str, ...]:
    """Give the keys that evidence means, once each, without those that no turn has."""
    pieces = [piece for entry in evidence for piece in re.split(r"[;,\s]+", entry)]
    found = [_EVIDENCE.fullmatch(piece) for piece in pieces]
    keys = [f"D{int(match[1])}:{int(match[2])}" for match in found if match]
    return tuple(dict.fromkeys(key for key in keys if key in known))
