"""Highlights: lines of turns, verbatim, with date and actor, chosen by an estimate of the facts in them. Pure.

They replace turns if no model can summarise them, and are never labelled as a summary. The density of a line is higher
with the first person, numbers and dates, names within a sentence, and a good length. It is lower for greetings and
questions. Measured on LoCoMo: at a fifth of the turns, this choice keeps about half of what is asked about later.
Ranking sentences by similarity keeps no more than chance.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

PROMPT_VERSION: Final = "highlights-1"

_LONGEST: Final = 280
_SHORTEST: Final = 12
_MAX_READ: Final = 20_000
_LINES_OF_A_TURN: Final = 3
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\s\"')\]]+(?=\S)|(?<=[。！？])|\n+")  # noqa: RUF001 - other scripts' signs
_FIRST_PERSONS: Final = "i|my|mine|me|we|our|us"
_DATES: Final = (
    "january|february|march|april|june|july|august|september|october|november|december|monday|tuesday|wednesday"
    "|thursday|friday|saturday|sunday|yesterday|tomorrow|tonight|today|last|next|ago|weekend|month|year|week"
)
_FIRST_PERSON: Final = re.compile(rf"\b(?:{_FIRST_PERSONS})\b", re.IGNORECASE)
_DATE: Final = re.compile(rf"\b(?:{_DATES})\b", re.IGNORECASE)
# in ASCII, looking up the words takes a third of the time of the expressions
_WORD: Final = re.compile(r"[a-z0-9_]+")
_FIRST_PERSON_WORDS: Final = frozenset(_FIRST_PERSONS.split("|"))
_DATE_WORDS: Final = frozenset(_DATES.split("|"))
_NUMBER: Final = re.compile(r"\d")
_NAME: Final = re.compile(r"[A-Z](?<=[a-z,;:'’\d] [A-Z])[\w'’-]+")  # noqa: RUF001 - the typographic apostrophe
_GREETING: Final = re.compile(
    r"^\W*(?:hi|hello|hey|thanks?|thank you|bye|goodbye|ok(?:ay)?|sure|great|wow|cool|nice|awesome|yes|yeah|no|sorry"
    r"|good (?:morning|evening|night)|you're welcome|no problem|take care|see you)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TurnText:
    """The text of a turn, with its author and time."""

    turn_id: str
    position: int
    actor: str
    occurred_at: datetime | None
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that may be kept. Of two equally dense lines the later one is preferred."""

    turn_id: str
    position: int
    place: int
    text: str
    density: float


def candidates(turns: Iterable[TurnText]) -> list[Candidate]:
    """Return the densest lines of each turn, at most three."""
    lines_of_turns: list[Candidate] = []
    for turn in turns:
        lines = sorted((-density(sentence), place, sentence) for place, sentence in enumerate(sentences(turn.text)))
        if lines:
            label = _label(turn)
            lines_of_turns.extend(
                Candidate(turn.turn_id, turn.position, place, f"{label} {sentence}", -rank)
                for rank, place, sentence in lines[:_LINES_OF_A_TURN]
            )
    return lines_of_turns


def choose(lines: Iterable[Candidate], *, max_tokens: int, count: Callable[[str], int]) -> list[Candidate]:
    """Return the densest lines within `max_tokens`, in the order of the conversation."""
    chosen: list[Candidate] = []
    left = max_tokens
    seen: set[str] = set()
    for line in sorted(lines, key=lambda line: (-line.density, -line.position, line.place)):
        if line.text in seen:
            continue
        # each word has a token of its own: most lines are too long for the rest without being counted
        if line.text.count(" ") < left and (tokens := count(f"{line.text}\n")) <= left:
            chosen.append(line)
            seen.add(line.text)
            left -= tokens
        if left < _SHORTEST // 3:
            break
    return sorted(chosen, key=lambda line: (line.position, line.place))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, each verbatim; a very long one is cut and ends with an ellipsis."""
    parts: list[str] = []
    for piece in _SENTENCE_END.split(text[:_MAX_READ]):
        sentence = " ".join(piece.split())
        if len(sentence) > _LONGEST:
            sentence = f"{sentence[:_LONGEST].rsplit(' ', 1)[0]} …"
        if len(sentence) >= _SHORTEST or (sentence and not sentence.isascii()):
            parts.append(sentence)
    return parts


def density(sentence: str) -> float:
    """Estimate how many facts a sentence contains."""
    if sentence.isascii():
        sentence_words = _WORD.findall(sentence.lower())
        is_own, dates = (
            not _FIRST_PERSON_WORDS.isdisjoint(sentence_words),
            sum(map(_DATE_WORDS.__contains__, sentence_words)),
        )
        length = len(sentence.split()) / 12
    else:
        is_own, dates = _FIRST_PERSON.search(sentence) is not None, len(_DATE.findall(sentence))
        length = len(sentence) / 40
    score = 1.0 if is_own else 0.0
    score += min(2.0, 1.0 * len(_NUMBER.findall(sentence)))
    score += min(1.0, 0.5 * dates)
    score += min(2.0, 0.7 * len(_NAME.findall(sentence)))
    score += min(1.5, length)
    if sentence.rstrip().endswith(("?", "？")):  # noqa: RUF001 - the other scripts' sign
        score -= 2.0
    if _GREETING.match(sentence):
        score -= 1.0
    return score


def _label(turn: TurnText) -> str:
    when = "" if turn.occurred_at is None else f"{turn.occurred_at.astimezone(UTC):%Y-%m-%d} "
    return f"[{when}{' '.join(turn.actor.split())}]"


def of_line(turn_id: str, position: int, text: str) -> Candidate:
    """Return a candidate for a line that was kept before, to rank it again."""
    _, _, said = text.partition("] ")
    return Candidate(turn_id, position, 0, text, density(said or text))
