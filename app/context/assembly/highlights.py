"""Highlights: lines of turns, verbatim, with their date and actor, chosen by how many facts they seem to hold. Pure.

They stand for turns where there is no model to summarise them, and never pass for a summary. A line's density: the
first person, numbers and dates, names in the midst of a sentence, and a good length speak for it; greetings and
questions against it. Such a choice keeps about half of what is asked about later at a fifth of the turns, where ranking
sentences by likeness keeps no more than chance (measured on LoCoMo).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

PROMPT_VERSION: Final = "highlights-1"

_LONGEST: Final = 280
_SHORTEST: Final = 12
_MAX_READ: Final = 20_000
_LINES_OF_A_TURN: Final = 3
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\s\"')\]]+(?=\S)|(?<=[。！？])|\n+")  # noqa: RUF001 - other scripts' signs
_FIRST_PERSON: Final = re.compile(r"\b(?:i|i'm|i've|i'd|i'll|my|mine|me|we|we're|we've|our|us)\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d")
_DATE: Final = re.compile(
    r"\b(?:january|february|march|april|june|july|august|september|october|november|december|monday|tuesday|wednesday"
    r"|thursday|friday|saturday|sunday|yesterday|tomorrow|tonight|today|last|next|ago|weekend|month|year|week)\b",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"(?<=[a-z,;:'’\d] )[A-Z][\w'’-]+")  # noqa: RUF001 - the typographic apostrophe
_GREETING: Final = re.compile(
    r"^\W*(?:hi|hello|hey|thanks?|thank you|bye|goodbye|ok(?:ay)?|sure|great|wow|cool|nice|awesome|yes|yeah|no|sorry"
    r"|good (?:morning|evening|night)|you're welcome|no problem|take care|see you)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a turn says, and who said it when."""

    turn_id: str
    position: int
    actor: str
    occurred_at: datetime | None
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that may be kept. Of two equally dense ones the later counts."""

    turn_id: str
    position: int
    place: int
    text: str
    density: float


def candidates(turns: Iterable[Spoken]) -> list[Candidate]:
    """The densest lines of each turn, three at most."""
    found: list[Candidate] = []
    for turn in turns:
        lines = [
            Candidate(turn.turn_id, turn.position, place, _labelled(turn, sentence), density(sentence))
            for place, sentence in enumerate(sentences(turn.text))
        ]
        found.extend(sorted(lines, key=lambda line: (-line.density, line.place))[:_LINES_OF_A_TURN])
    return found


def choose(lines: Iterable[Candidate], *, max_tokens: int, count: Callable[[str], int]) -> list[Candidate]:
    """The densest lines within so many tokens, in the order they were said."""
    kept: list[Candidate] = []
    left = max_tokens
    seen: set[str] = set()
    for line in sorted(lines, key=lambda line: (-line.density, -line.position, line.place)):
        if line.text in seen:
            continue
        tokens = count(f"{line.text}\n")
        if tokens <= left:
            kept.append(line)
            seen.add(line.text)
            left -= tokens
        if left < _SHORTEST // 3:
            break
    return sorted(kept, key=lambda line: (line.position, line.place))


def sentences(text: str) -> list[str]:
    """The sentences of a text, each verbatim; a very long one is cut, and says so."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(text[:_MAX_READ]):
        sentence = " ".join(piece.split())
        if len(sentence) > _LONGEST:
            sentence = f"{sentence[:_LONGEST].rsplit(' ', 1)[0]} …"
        if len(sentence) >= _SHORTEST or (sentence and not sentence.isascii()):
            found.append(sentence)
    return found


def density(sentence: str) -> float:
    """How many facts a sentence seems to hold."""
    words = sentence.split()
    score = 1.0 if _FIRST_PERSON.search(sentence) else 0.0
    score += min(2.0, 1.0 * len(_NUMBER.findall(sentence)))
    score += min(1.0, 0.5 * len(_DATE.findall(sentence)))
    score += min(2.0, 0.7 * len(_NAME.findall(sentence)))
    score += min(1.5, len(words) / 12) if sentence.isascii() else min(1.5, len(sentence) / 40)
    if sentence.rstrip().endswith(("?", "？")):  # noqa: RUF001 - the other scripts' sign
        score -= 2.0
    if _GREETING.match(sentence):
        score -= 1.0
    return score


def _labelled(turn: Spoken, sentence: str) -> str:
    when = "" if turn.occurred_at is None else f"{turn.occurred_at.astimezone(UTC):%Y-%m-%d} "
    return f"[{when}{' '.join(turn.actor.split())}] {sentence}"


def of_line(turn_id: str, position: int, text: str) -> Candidate:
    """A line that was kept before, to be weighed against others again."""
    _, _, said = text.partition("] ")
    return Candidate(turn_id, position, 0, text, density(said or text))


def fitting(lines: Sequence[str], *, max_tokens: int, count: Callable[[str], int]) -> list[str]:
    """As many of the densest of some highlights as fit, in their order."""
    some = [of_line(str(place), place, line) for place, line in enumerate(lines)]
    return [line.text for line in choose(some, max_tokens=max_tokens, count=count)]
