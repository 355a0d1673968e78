"""Check a summary that a model wrote against the texts that it was written from. Pure.

A summary is a claim about turns that are stored. It is refused if it cannot be a summary of these texts: blank, too
short or too long for them, repeated, data instead of text, about something else, or with numbers or names that they do
not have. Accepted does not mean true: a text with the right words may say wrongly who did something.

The limits are chosen on real conversations (`bench/summary_checks.py`): a good summary is refused in at most one of 200
cases. Where a rule is not certain (a translated name, a sum, a count), it accepts.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final, cast

from app.context.compaction import claim_numbers, claim_words
from app.context.compaction.claim_numbers import SourceFigures
from app.conversations.schemas.summaries import RefusedFor
from app.index.analyser.analyser import Analyser
from app.index.analyser.dates import resolve_dates
from app.index.analyser.languages import read_language
from app.index.analyser.numbers import Mentions, fold_digits, has_large_words, read_mentions, read_words
from app.index.analyser.words import is_spaceless

MAX_CHARACTERS: Final = 16_000

_MIN_SHARE: Final = 0.02
_MAX_MINIMUM: Final = 30
_MIN_WORDS: Final = 3
_SHORT_SOURCE: Final = 40
_MAX_OF_SHORT: Final = 60
_PHRASE: Final = 4
_MIN_PHRASES: Final = 8
_MIN_DISTINCT: Final = 0.2
_REFRAIN: Final = 3
_MIN_REFRAINS: Final = 4
_MAX_REFRAIN: Final = 0.5
_MIN_RELATED: Final = 0.35
_MIN_RELATED_PAIRS: Final = 0.2
_MIN_PART: Final = 40
_MIN_FOREIGN: Final = 2
_FEW_NUMBERS: Final = 1
_NUMBER_SHARE: Final = 0.2
_FEW_NAMES: Final = 1
_NAME_SHARE: Final = 0.1
_MAX_NAMES: Final = 3
_PROMPT_SHARE: Final = 0.5

_CALL: Final = re.compile(r"\"(?:arguments|parameters|tool_calls?|function)\"\s*:\s*[\[{\"]")
_TAGS: Final = re.compile(r"</?(?:tool_call|function_call|tool_response|tools)\b|<\|[a-z_]+\|>|\[TOOL_CALLS\]")
_FORM: Final = frozenset({"summary", "abstract"})
_OBJECT: Final = re.compile(r"[{\[]\s*[\"{\[]")
_MAX_OBJECTS: Final = 50


@dataclass(frozen=True, slots=True)
class Shown:
    """A text that the model read: a turn with its actor and time, or an earlier summary without them."""

    text: str
    actor: str | None = None
    occurred_at: datetime | None = None


class SummarySource:
    """The texts that a summary was written from. Not thread-safe, because stemmers keep state."""

    def __init__(self, shown: Sequence[Shown], *, prompt: str = "") -> None:
        """`prompt`: the instructions, which are no summary either."""
        self._shown = shown
        self._prompt = set(_phrases(claim_words.plain_words(prompt)))
        self._analyser = Analyser()
        self._texts = [source.text for source in shown]
        self._stems_by_language: dict[str, set[str]] = {}

    def refusal(self, summary: str, *, is_abstract: bool = False) -> RefusedFor | None:
        """Return why a summary of these texts is refused; None if it is accepted. An abstract may be short."""
        summary_words = claim_words.plain_words(summary)
        return (
            self._length_refusal(summary, summary_words, is_abstract=is_abstract)
            or self._form_refusal(summary, summary_words)
            or self._support_refusal(summary)
        )

    def _length_refusal(self, summary: str, summary_words: Sequence[str], *, is_abstract: bool) -> RefusedFor | None:
        if not summary_words:
            return RefusedFor.BLANK
        length = claim_words.size(summary_words)
        if len(summary) > MAX_CHARACTERS or length > max(self._length, _MAX_OF_SHORT):
            return RefusedFor.TOO_LONG
        return RefusedFor.TOO_SHORT if length < self._minimum() and not is_abstract else None

    def _form_refusal(self, summary: str, summary_words: Sequence[str]) -> RefusedFor | None:
        if self._is_not_text(summary):
            return RefusedFor.NOT_TEXT
        if _is_repeated(summary_words, self._distinct) or _MAX_REFRAIN < _refrain_share(summary_words) > self._refrain:
            return RefusedFor.REPEATED
        phrases = set(_phrases(summary_words))
        is_prompt = len(self._prompt & phrases) > _PROMPT_SHARE * len(phrases)
        return RefusedFor.UNRELATED if is_prompt else None

    def _minimum(self) -> int:
        if self._length <= _SHORT_SOURCE:
            return 1
        return max(_MIN_WORDS, min(_MAX_MINIMUM, int(self._length * _MIN_SHARE)))

    def _support_refusal(self, summary: str) -> RefusedFor | None:
        code = self._analyser.detect(summary)
        is_foreign = code is not None and self._languages and code not in self._languages
        code = code or self._language
        mentions = read_mentions(summary, code)
        names = claim_words.names(summary, code)
        if is_foreign:
            if self._shared(names, mentions) < _MIN_FOREIGN:
                return RefusedFor.UNRELATED
        elif not self._is_related(summary, code):
            return RefusedFor.UNRELATED
        if self._has_unsupported_numbers(mentions):
            return RefusedFor.UNSUPPORTED_NUMBER
        return RefusedFor.UNSUPPORTED_NAME if self._has_unsupported_names(names) else None

    # rules

    def _is_not_text(self, summary: str) -> bool:
        """Return whether a summary is mostly data, or has a tool call or this form in it that no source text has."""
        if (_CALL.search(summary) or _TAGS.search(summary)) and not any(
            _CALL.search(text) or _TAGS.search(text) for text in self._texts
        ):
            return True
        spans = _json_spans(summary)
        if sum(len(span) for span, _ in spans) * 2 > len(summary.strip()):
            return True
        return any(
            isinstance(value, dict) and not _FORM.isdisjoint(cast("dict[str, object]", value)) for _, value in spans
        )

    def _is_related(self, summary: str, code: str) -> bool:
        """Return whether enough of the rare words of a summary are words of the source, and some of each part of it."""
        rare = claim_words.rare_stems(summary, code, self._analyser) - self._actor_stems(code)
        source_stems = self._stems(code)
        if rare:
            least = _MIN_RELATED_PAIRS if _is_dense(rare) else _MIN_RELATED
            if len(rare & source_stems) < least * len(rare):
                return False
        elif not claim_words.stems(summary, code, self._analyser) & source_stems:
            return False
        return self._has_each_part(rare, code)

    def _has_each_part(self, rare: set[str], code: str) -> bool:
        """Return whether a summary has words of the turns as well as of the earlier summaries, if both are long."""
        turns = self._rare_of([source for source in self._shown if source.actor is not None], code)
        before = self._rare_of([source for source in self._shown if source.actor is None], code)
        parts = [part for part in (turns - before, before - turns) if len(part) >= _MIN_PART]
        return not before or not turns or all(rare & part for part in parts)

    def _shared(self, names: claim_words.NameCounts, mentions: Mentions) -> int:
        """Return how many names and large numbers of a summary in another language the source has.

        Names of the speakers do not count: a model that invents a summary has them from the request.
        """
        said = {*names.inside, *names.at_start} - self._actor_names
        shared = sum(self._names.has(name) for name in said)
        numbers = {readings for readings in mentions.numbers if not all(map(claim_numbers.is_count, readings))}
        shared += sum(self._figures.supports_number(readings) for readings in numbers)
        return shared + sum(self._figures.supports_date(readings) for readings in set(mentions.dates))

    def _has_unsupported_numbers(self, mentions: Mentions) -> bool:
        figures = self._figures
        if any(not figures.supports_date(readings) for readings in mentions.dates):
            return True
        missing = [readings for readings in mentions.numbers if not figures.supports_number(readings)]
        if any(not all(map(claim_numbers.is_count, readings)) for readings in missing):
            return True
        missing_times = [time for time in mentions.times if time not in figures.times]
        total = len(mentions.numbers) + len(mentions.times)
        return len(missing) + len(missing_times) > max(_FEW_NUMBERS, _NUMBER_SHARE * total)

    def _has_unsupported_names(self, names: claim_words.NameCounts) -> bool:
        inside = set(names.inside)
        missing = [name for name in inside if not self._names.has(name)]
        starting = [name for name, count in names.at_start.items() if count > 1 and name not in inside]
        missing += [name for name in starting if not self._names.has(name) and not self._is_word(name)]
        if any(names.count(name) > 1 for name in missing):
            return True
        return len(missing) > min(_MAX_NAMES, max(_FEW_NAMES, _NAME_SHARE * len({*inside, *starting})))

    def _is_word(self, name: str) -> bool:
        """Return whether a word at the start of sentences is another form of a word of the source."""
        return bool(claim_words.stems(name, self._language, self._analyser) & self._stems(self._language))

    # what the source has

    @cached_property
    def _words(self) -> list[list[str]]:
        return [claim_words.plain_words(text) for text in self._texts]

    @cached_property
    def _length(self) -> int:
        return sum(map(claim_words.size, self._words))

    @cached_property
    def _distinct(self) -> float:
        return _distinct_share([word for text_words in self._words for word in text_words])

    @cached_property
    def _refrain(self) -> float:
        return _refrain_share([word for text_words in self._words for word in text_words])

    @cached_property
    def _language(self) -> str:
        return claim_words.language_of(self._texts, self._analyser)

    @cached_property
    def _languages(self) -> frozenset[str]:
        shown = [self._analyser.detect(text) for text in self._texts]
        return frozenset(code for code in shown if code is not None)

    @cached_property
    def _figures(self) -> SourceFigures:
        figures = SourceFigures()
        for source, text_words in zip(self._shown, self._words, strict=True):
            code = self._analyser.detect(source.text) or self._language
            text = fold_digits(source.text)
            figures.add(read_mentions(source.text, code))
            figures.numbers.update(read_words(text, text_words, code))
            figures.has_large_words = figures.has_large_words or has_large_words(text, text_words)
            if source.occurred_at is not None:
                figures.add_turn(source.occurred_at, is_vague=read_language(code).times.is_in(text_words, text))
                dates = resolve_dates(source.text, occurred_at=source.occurred_at, code=code)
                figures.spans.extend((day.first_day, day.last_day) for day in dates)
        return figures

    @cached_property
    def _names(self) -> claim_words.NameIndex:
        actors = [source.actor for source in self._shown if source.actor is not None]
        return claim_words.NameIndex(
            [*self._texts, *actors], [word for text_words in self._words for word in text_words]
        )

    @cached_property
    def _actors(self) -> str:
        return " ".join({source.actor for source in self._shown if source.actor is not None})

    @cached_property
    def _actor_names(self) -> set[str]:
        return set(claim_words.plain_words(self._actors))

    def _actor_stems(self, code: str) -> set[str]:
        return claim_words.stems(self._actors, code, self._analyser)

    def _stems(self, code: str) -> set[str]:
        """Return the words of the source, and their lexemes in the language of a summary."""
        if code not in self._stems_by_language:
            stems = claim_words.stems("\n".join(self._texts), code, self._analyser)
            self._stems_by_language[code] = stems.union(*self._words)
        return self._stems_by_language[code]

    def _rare_of(self, shown: Sequence[Shown], code: str) -> set[str]:
        texts = "\n".join(source.text for source in shown)
        return claim_words.rare_stems(texts, code, self._analyser) - self._actor_stems(code)


def _is_dense(rare: set[str]) -> bool:
    """Return whether most of the words are pairs of characters of a script without spaces."""
    return sum(map(is_spaceless, rare)) * 2 > len(rare)


def _is_repeated(text_words: Sequence[str], of_source: float) -> bool:
    """Return whether a text is mostly one repeated phrase, more than its source is."""
    share = _distinct_share(text_words)
    return share < _MIN_DISTINCT and share < of_source


def _distinct_share(text_words: Sequence[str]) -> float:
    """Return the share of different phrases of four words (of characters, in scripts without spaces) among all."""
    phrases = _phrases(text_words)
    return 1.0 if len(phrases) < _MIN_PHRASES else len(set(phrases)) / len(phrases)


def _refrain_share(text_words: Sequence[str]) -> float:
    """Return the share of a text that its most frequent phrase of three words makes up, with other words between."""
    phrases = _phrases(text_words, size=_REFRAIN)
    if len(phrases) < _MIN_PHRASES:
        return 0.0
    count = Counter(phrases).most_common(1)[0][1]
    return count * _REFRAIN / len(phrases) if count >= _MIN_REFRAINS else 0.0


def _phrases(text_words: Sequence[str], *, size: int = _PHRASE) -> list[tuple[str, ...]]:
    units = [unit for word in text_words for unit in (word if is_spaceless(word) else (word,))]
    return [tuple(units[at : at + size]) for at in range(len(units) - size + 1)]


def _json_spans(text: str) -> list[tuple[str, object]]:
    """Return the JSON objects and lists of objects in a text, each with its value, outermost ones only."""
    spans: list[tuple[str, object]] = []
    decoder = json.JSONDecoder()
    at = 0
    for _ in range(_MAX_OBJECTS):
        match = _OBJECT.search(text, at)
        if match is None:
            break
        try:
            value, end = cast("tuple[object, int]", decoder.raw_decode(text, match.start()))
        except (ValueError, RecursionError):
            at = match.start() + 1
            continue
        spans.append((text[match.start() : end], value))
        at = end
    return spans
