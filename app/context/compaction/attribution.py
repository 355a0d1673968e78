"""Find the sentences of a summary that give a participant what only another one said of itself. Pure.

A sentence is doubtful if it names one participant and a turn of another one has several of its rare words, but no turn
of the named one does. What others say to or about the named participant ("you", its name) counts as its own, and words
of an earlier summary count for everybody. So most marked sentences are wrong, and many wrong ones are not marked.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.context.compaction import claim_words
from app.context.compaction.claims import Shown
from app.conversations.schemas.summaries import DoubtfulSentence
from app.index.analyser.analyser import Analyser
from app.index.analyser.languages import Language, read_language

_SENTENCE: Final = re.compile(
    r"[^\s.!?\u2026。][^.!?\u2026。\n]*(?:[.!?\u2026。]+(?=[^\s])[^.!?\u2026。\n]*)*[.!?\u2026。]*"
)
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_MIN_NAME: Final = 3
_MIN_WORDS: Final = 3
_MIN_SHARE: Final = 0.5


def doubtful_sentences(summary: str, shown: Sequence[Shown], *, earlier: Sequence[str] = ()) -> list[DoubtfulSentence]:
    """Return the doubtful sentences of a summary of these texts, by their place in code points.

    `earlier`: doubtful sentences of earlier summaries, which stay doubtful where they are repeated word by word.
    """
    sentences = [(match.start(), match.end(), match[0]) for match in _SENTENCE.finditer(summary)]
    evidence = _Evidence(shown, claim_words.language_of([summary], Analyser()))
    return [
        DoubtfulSentence(start=start, end=end, reason="said_by_another")
        for start, end, sentence in sentences
        if sentence in earlier or evidence.is_of_another(sentence)
    ]


@dataclass(frozen=True, slots=True)
class _Participant:
    """A participant: its names, and for each turn the words that it says of itself, and those that are said of it."""

    names: frozenset[str]
    own: list[set[str]]
    about: list[set[str]]

    def is_named(self, words: Sequence[str], language: Language) -> bool:
        """Return whether a text names the participant, also by the start of its name."""
        short = [word for word in words if len(word) >= _MIN_NAME and word not in language.stop_words]
        return any(name.startswith(word) for word in short for name in self.names)


class _Evidence:
    """Who said which words. Not thread-safe, because stemmers keep state."""

    def __init__(self, shown: Sequence[Shown], code: str) -> None:
        self._code = code
        self._analyser = Analyser()
        self._language = read_language(code)
        actors = list(dict.fromkeys(text.actor for text in shown if text.actor is not None))
        self._participants = {actor: _Participant(_names_of(actor), [], []) for actor in actors}
        self._ignored = claim_words.stems(" ".join(actors), code, self._analyser)
        for text in shown:
            if text.actor is None:
                self._ignored |= claim_words.stems(text.text, code, self._analyser)
            else:
                self._add_turn(text.text, text.actor)

    def is_of_another(self, sentence: str) -> bool:
        """Return whether a sentence gives one participant what another one said of itself."""
        words = claim_words.plain_words(sentence)
        named = [
            actor for actor, participant in self._participants.items() if participant.is_named(words, self._language)
        ]
        if len(named) != 1:
            return False
        rare = claim_words.content_stems(sentence, self._code, self._analyser) - self._ignored
        subject = self._participants[named[0]]
        supported = _most(rare, [*subject.own, *subject.about])
        of_others = max(
            (_most(rare, other.own) for actor, other in self._participants.items() if actor != named[0]), default=0
        )
        if of_others < max(_MIN_WORDS, _MIN_SHARE * len(rare)):
            return False
        return supported * 2 <= of_others

    def _add_turn(self, text: str, actor: str) -> None:
        said_by_actor, about = set[str](), {other: set[str]() for other in self._participants if other != actor}
        for match in _SENTENCE.finditer(text):
            words = claim_words.plain_words(match[0])
            stems = claim_words.stems(match[0], self._code, self._analyser)
            is_to_others = _speaks_to_another(self._language, words, match[0])
            if not is_to_others or self._language.first_person.is_in(words, match[0]):
                said_by_actor |= stems
            for other, said in about.items():
                if is_to_others or self._participants[other].is_named(words, self._language):
                    said.update(stems)
        self._participants[actor].own.append(said_by_actor)
        for other, said in about.items():
            self._participants[other].about.append(said)


def _speaks_to_another(language: Language, words: Sequence[str], text: str) -> bool:
    """Return whether a sentence speaks to another person, or asks."""
    return language.second_person.is_in(words, text) or text.rstrip().endswith(("?", "\uff1f", "\u061f"))


def _names_of(actor: str) -> frozenset[str]:
    return frozenset(claim_words.fold(word) for word in _LETTERS.findall(actor) if len(word) >= _MIN_NAME)


def _most(rare: set[str], turns: Sequence[set[str]]) -> int:
    """Return the most of the words that one turn has."""
    return max((len(rare & words) for words in turns), default=0)
