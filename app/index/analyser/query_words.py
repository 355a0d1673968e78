"""The words of a query as groups of lexemes, one group for each word. Pure.

An entry has the lexemes of its own language, and a scope may have entries of several. So a word of a query has a lexeme
for each of these languages. Together they count as one word: "Barcelona" is found as `barcelona` and as `barcelon`.

In scripts without spaces, words of a question that say nothing ("什么时候", "ですか") are taken out first. Pairs with
their characters are in no entry, and would count as rare words.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase
from typing import Final, TypeAlias

from app.core.database.transactions import FloatVector
from app.index.analyser.analyser import Analyser
from app.index.analyser.cues import without_requests
from app.index.analyser.languages import CODES, DEFAULT, SPACELESS_SCRIPTS, Language, is_latin, read_file, read_language
from app.index.analyser.words import has_other_script, is_spaceless, marked_words, pairs, strip_marks

WordGroup: TypeAlias = tuple[str, ...]
"""The lexemes of one word of a query, of which an entry may have any."""

MAX_QUERY_WORDS: Final = 64
"""The work grows with the entries in scope times the words of the query; questions have fewer."""
_MAX_LANGUAGES: Final = 5
_PARTS: Final = re.compile(
    r"(?P<hiragana>[\u3040-\u309f]+)|[\u30a0-\u30ff\u31f0-\u31ff]+|[^\u3040-\u30ff\u31f0-\u31ff]+"
)
_HANGUL: Final = re.compile(r"[\ua960-\ua97f\uac00-\ud7ff]")
_KANA: Final = re.compile(r"[\u3040-\u30ff]")
_MIN_WORD: Final = 3
_SAFE_LETTERS: Final = 2
_MIN_MISSPELT: Final = 4
_MIN_REPLACED: Final = 6
_LONGEST_ENDING: Final = 8


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The words of a query.

    `names` are lexemes of participants' names. `language`: that in which the question is read. `is_english`: how common
    its words are is known.
    """

    groups: Sequence[WordGroup]
    names: frozenset[str]
    language: str
    is_english: bool = True

    @property
    def lexemes(self) -> list[str]:
        """Return the lexemes of all groups."""
        return [lexeme for group in self.groups for lexeme in group]


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query, analysed and embedded. Its words depend on the languages of the entries in scope.

    `names` are those of participants; without them, names count as any other word. `language` is that of the text, None
    if it shows none. `max_words`: further words are ignored; with 0, no word is searched.

    `vector` has the length 1. It is None if words alone are searched: without an embedder, for a text in a script that
    its model does not read, or if it failed with the error code `degraded`. `space_id` is the embedding space of the
    vector, None for the searched one: it is used even if the searched space changes meanwhile.
    """

    text: str
    names: Sequence[str] = ()
    language: str | None = None
    max_words: int = 0
    vector: FloatVector | None = None
    space_id: int | None = None
    degraded: str | None = None

    @property
    def by_words(self) -> bool:
        """Return whether words are searched."""
        return self.max_words > 0

    def words(self, in_scope: Sequence[str]) -> QueryWords:
        """Return the words for a scope with entries in some languages, the most frequent first."""
        if not self.by_words:
            return QueryWords((), frozenset(), self.language or DEFAULT)
        languages = languages_of_words(self.language, in_scope)
        analyser = Analyser()
        asked = without_requests(self.text, languages.main)
        groups = list(dict.fromkeys(_groups(asked, languages, analyser)))
        groups = groups or list(dict.fromkeys(_groups(self.text, languages, analyser)))
        if not groups:  # nothing but words that say nothing
            groups = [(pair,) for word in marked_words(self.text) if is_spaceless(word) for pair in _whole(word)]
        groups = groups[: self.max_words]
        names = frozenset(
            lexeme for group in _groups(" ".join(self.names if groups else ()), languages, analyser) for lexeme in group
        )
        return QueryWords(groups, names, languages.main, is_english=languages.latin[0] == DEFAULT)


@dataclass(frozen=True, slots=True)
class QueryLanguages:
    """The languages of a query: the `main` one, those of words in Latin script, and that of Han characters."""

    main: str
    latin: Sequence[str]
    han: str


def misspellings(lexeme: str) -> Iterator[str]:
    """Yield the lexemes from which a word in Latin letters differs by one typing error after its second letter.

    The error is a letter too many, one too few, two letters exchanged, or in a longer word another letter: of words of
    five letters, too many differ by one (horse, house).
    """
    if len(lexeme) < _MIN_MISSPELT or not lexeme.isascii() or not lexeme.isalpha():
        return
    for at in range(_SAFE_LETTERS, len(lexeme) + 1):
        before, after = lexeme[:at], lexeme[at:]
        if after and len(lexeme) > _MIN_MISSPELT:
            yield before + after[1:]
        if len(after) > 1 and after[0] != after[1]:
            yield before + after[1] + after[0] + after[2:]
        for letter in ascii_lowercase:
            yield before + letter + after
            if after and letter != after[0] and len(lexeme) >= _MIN_REPLACED:
                yield before + letter + after[1:]


def plain_words(lexemes: Sequence[str], names: Collection[str] = ()) -> QueryWords:
    """Return the words of an English query whose lexemes are known."""
    return QueryWords([(lexeme,) for lexeme in lexemes], frozenset(names), DEFAULT)


def languages_of_words(shown: str | None, in_scope: Sequence[str]) -> QueryLanguages:
    """Return the languages of a query that shows one or none, in a scope with entries in some languages."""
    codes = [code for code in in_scope if code in CODES] or [DEFAULT]
    main = shown or codes[0]
    # words in Latin script are English in texts of other scripts
    latin = dict.fromkeys(code if is_latin(code) else DEFAULT for code in (main, *codes))
    spaceless = [code for code in (main, *codes) if read_file(code).script in SPACELESS_SCRIPTS]
    return QueryLanguages(main, list(latin)[:_MAX_LANGUAGES], spaceless[0] if spaceless else "zh")


def _groups(text: str, languages: QueryLanguages, analyser: Analyser) -> Iterator[WordGroup]:
    if languages.latin == [DEFAULT] and not has_other_script(text):
        yield from ((lexeme,) for lexeme in analyser.lexemes(text))
        return
    stop_words = read_language(languages.latin[0]).stop_words
    for word in marked_words(text):
        if is_spaceless(word):
            yield from ((part,) for part in _parts_of_run(word, languages.han))
        elif strip_marks(word) not in stop_words:
            lexemes = dict.fromkeys(analyser.stem(word, code) for code in languages.latin)
            if group := tuple(lexeme for lexeme in lexemes if lexeme is not None):
                yield group


def _parts_of_run(run: str, han: str) -> Iterator[str]:
    """Yield the pairs of a run without spaces, without those of words that say nothing."""
    language = read_language("ja" if _KANA.search(run) else "ko" if _HANGUL.match(run) else han)
    match language.code:
        case "ko":
            parts = [part for word in _without_stop_words(run, language, whole=True) for part in _pairs_of_stem(word)]
        case "ja":
            parts = list(_japanese_parts(run, language))
        case _:
            parts = [pair for part in _without_stop_words(run, language) for pair in _whole(part)]
    yield from parts


def _japanese_parts(run: str, language: Language) -> Iterator[str]:
    """Yield the pairs of Kanji and Katakana, and of Hiragana between particles and endings."""
    follows = False
    for match in _PARTS.finditer(run):
        if match["hiragana"] is None:
            for part in _without_stop_words(match[0], language):
                yield from _whole(part)
        elif len(rest := _without_endings(match[0], language, follows=follows)) > 1:
            yield from pairs(rest)
        follows = True


def _without_endings(part: str, language: Language, *, follows: bool) -> str:
    """Return Hiragana without the particles at its start and the endings at its end.

    `follows`: it stands after other characters, so that one Hiragana at its start is a particle.
    """
    words = language.stop_words
    start, end = 0, len(part)
    while start < end:
        shortest = 0 if follows or start else 1
        sizes = range(min(_LONGEST_ENDING, end - start), shortest, -1)
        size = next((size for size in sizes if part[start : start + size] in words), 0)
        if not size:
            break
        start += size
    while start < end:
        sizes = range(min(_LONGEST_ENDING, end - start), 0, -1)
        size = next((size for size in sizes if part[end - size : end] in words), 0)
        if not size:
            break
        end -= size
    return part[start:end]


def _pairs_of_stem(word: str) -> list[str]:
    """Return the pairs of a Korean word without its ending, if enough is left."""
    endings = read_file("ko").endings.split()
    fitting = [end for end in endings if word.endswith(end) and len(word) > max(len(end), _MIN_WORD - 1)]
    return _whole(word.removesuffix(max(fitting, key=len, default="")))


def _whole(run: str) -> list[str]:
    return pairs(run) or [run]


def _without_stop_words(run: str, language: Language, *, whole: bool = False) -> Iterator[str]:
    """Yield the parts of a run between stop words; words to keep are not divided. `whole`: the run is one word."""
    if whole:
        yield from () if run in language.stop_words else (run,)
        return
    start = 0
    for match in _words_of(language.code).finditer(run):
        if match[0] in language.stop_words:
            if match.start() > start:
                yield run[start : match.start()]
            start = match.end()
    if start < len(run):
        yield run[start:]


@cache
def _words_of(code: str) -> "re.Pattern[str]":
    """Return an expression for the stop words of a language and the words to keep, the longest first."""
    language = read_language(code)
    return re.compile("|".join(sorted(language.keep | language.stop_words, key=lambda word: (-len(word), word))))
