"""Detection of the language of a text: by its script, and in Latin script by frequent words. Pure and deterministic.

Only the start of a text is read, so that the time is bounded. A text that shows no language, such as a name or a
number, has none: it takes that of the turn before it (`inherit_languages`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from app.index.analyser.languages import CODES, DEFAULT, Script, is_latin, read_file, word_set
from app.index.analyser.words import has_other_script, words

_SAMPLE_CHARACTERS: Final = 2_000
_SAMPLE_WORDS: Final = 200
# a language is chosen if two of its words are there, or one in a text of so few without English words, which weigh this
# much: at least, and as a multiple of the weight of any other language
_FEW_WORDS: Final = 4
_LEAST: Final = 1.0
_LEAD: Final = 1.4
_LETTER_WEIGHT: Final = 0.5
_MAX_LETTERS: Final = 2
# a character of these scripts says as much as some letters
_DENSE: Final = 3

_LATIN: Final = re.compile(r"[a-z\u00c0-\u024f\u1e00-\u1eff]", re.IGNORECASE)
_KANA: Final = re.compile(r"[\u3041-\u3096\u30a1-\u30fa\uff66-\uff9d]")
_HAN: Final = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_CHINESE: Final = re.compile(
    "[的了是我不在吗嗎这這们們你他她也很说說那呢吧什么麼哪谁为给对没过个几时间车见问发买让认觉边远运还现样妈钱银饭]"
)
"""Characters that nearly every Chinese sentence has one of, and a Japanese one has only with Kana."""
_MAX_KANA_LESS: Final = 8
_SCRIPTS: Final[Mapping[Script, "re.Pattern[str]"]] = {
    Script.CYRILLIC: re.compile(r"[\u0400-\u052f]"),
    Script.ARABIC: re.compile(r"[\u0620-\u064a\u066e-\u06d3\ufb50-\ufdff\ufe70-\ufefc]"),
    Script.DEVANAGARI: re.compile(r"[\u0904-\u0939\u0958-\u0961]"),
    Script.HANGUL: re.compile(r"[\u1100-\u11ff\uac00-\ud7a3]"),
}
_LANGUAGES: Final = {Script.CYRILLIC: "ru", Script.ARABIC: "ar", Script.DEVANAGARI: "hi", Script.HANGUL: "ko"}
# letters of other languages in the same script: Ukrainian, Belarusian, Serbian, Macedonian; Persian, Urdu, Pashto
_FOREIGN: Final = re.compile(r"[іїєґўђћџљњјѓќѕ]|[پچژگٹڈڑںےھہکی]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _LatinWords:
    """The frequent words of the languages in Latin script.

    `english` are those of English alone, `common` all that are common in it and no stop words of others. `foreign` are
    those of others that are not common in English. `weights`: the languages of a word, and its weight, which is less
    the more languages share it. `letters`: the languages of a letter.
    """

    english: frozenset[str]
    common: frozenset[str]
    foreign: frozenset[str]
    weights: Mapping[str, tuple[float, tuple[str, ...]]]
    letters: Mapping[str, tuple[str, ...]]


def detect(text: str, text_words: Sequence[str] | None = None) -> str | None:
    """Return the language of a text, or None if it shows none. `text_words`: its words, if they are known."""
    if not text.isascii():
        sample = text[:_SAMPLE_CHARACTERS]
        if has_other_script(sample) and (script := _dominant_script(sample)) is not None:
            return _of_script(script, sample)
    if text_words is None:
        text_words = words(text[:_SAMPLE_CHARACTERS])
    return _of_words(text_words[:_SAMPLE_WORDS], text)


def _dominant_script(sample: str) -> Script | None:
    """Return the script of most of a text; None for Latin and for scripts without a language."""
    counts = {script: len(pattern.findall(sample)) for script, pattern in _SCRIPTS.items()}
    counts[Script.KANA], counts[Script.HAN] = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    east_asian = counts[Script.KANA] + counts[Script.HAN]
    weights = {**counts, Script.HAN: _DENSE * east_asian, Script.HANGUL: _DENSE * counts[Script.HANGUL]}
    best = max(weights, key=lambda script: weights[script])
    if weights[best] == 0 or weights[best] < len(_LATIN.findall(sample)):
        return None
    if best is Script.HAN and counts[Script.KANA] * 10 >= counts[Script.HAN]:
        return Script.KANA
    return best


def _of_script(script: Script, sample: str) -> str | None:
    if script is Script.KANA:
        return "ja"
    if script is Script.HAN:
        # Japanese names and headings have no Kana
        is_chinese = _CHINESE.search(sample) or len(_HAN.findall(sample)) > _MAX_KANA_LESS
        return "zh" if is_chinese else None
    if len(_FOREIGN.findall(sample)) * 40 > len(_SCRIPTS[script].findall(sample)):
        return None
    return _LANGUAGES[script]


def _of_words(text_words: Sequence[str], text: str) -> str | None:
    latin = _latin_words()
    if latin.foreign.isdisjoint(text_words):  # most English texts
        return None if latin.english.isdisjoint(text_words) else DEFAULT
    scores: dict[str, float] = {}
    hits: dict[str, int] = {}
    for word in dict.fromkeys(text_words):  # in their order, so that sums are the same in every process
        weight, codes = latin.weights.get(word, (0.0, ()))
        for code in codes:
            scores[code] = scores.get(code, 0.0) + weight
            hits[code] = hits.get(code, 0) + 1
    if not text.isascii():
        shown = {letter for letter in text[:_SAMPLE_CHARACTERS].lower() if letter in latin.letters}
        for code in scores:
            count = sum(code in latin.letters[letter] for letter in shown)
            scores[code] += _LETTER_WEIGHT * min(count, _MAX_LETTERS)
    best = max(scores, key=lambda code: scores[code])
    second_best = max((score for code, score in scores.items() if code != best), default=0.0)
    is_enough = hits[best] > 1 or (len(text_words) <= _FEW_WORDS and latin.common.isdisjoint(text_words))
    return best if is_enough and scores[best] >= max(_LEAST, _LEAD * second_best) else None


@cache
def _latin_words() -> _LatinWords:
    of_word: dict[str, list[str]] = {}
    of_letter: dict[str, list[str]] = {}
    for code in CODES:
        language = read_file(code)
        if language.script is not Script.LATIN:
            continue
        for word in word_set(f"{language.stop_words} {language.frequent}"):
            of_word.setdefault(word, []).append(code)
        for letter in language.letters:
            of_letter.setdefault(letter, []).append(code)
    english = read_file(DEFAULT)
    common = word_set(f"{english.common} {english.frequent}")
    stop_words = word_set(" ".join(read_file(code).stop_words for code in CODES if code != DEFAULT and is_latin(code)))
    return _LatinWords(
        english=frozenset(word for word, codes in of_word.items() if codes == [DEFAULT]),
        common=common - stop_words,
        foreign=frozenset(word for word, codes in of_word.items() if DEFAULT not in codes) - common,
        weights={word: (1 / len(codes), tuple(codes)) for word, codes in of_word.items()},
        letters={letter: tuple(codes) for letter, codes in of_letter.items()},
    )
