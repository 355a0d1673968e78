"""Languages: which one a text shows, how its words are stemmed, and how a question in it is read."""

import time
from datetime import UTC, datetime
from typing import get_args

import pytest

from app.index.analyser.analyser import Analyser
from app.index.analyser.cues import Cue, question_cues, read_cues
from app.index.analyser.date_words import date_heading
from app.index.analyser.dates import may_have_dates, resolve_dates
from app.index.analyser.detection import detect
from app.index.analyser.languages import CODES, read_file, read_language
from app.index.analyser.query_words import PreparedQuery
from app.recall.ranking import Role, read_intent
from app.settings.memory import Language

WEDNESDAY = datetime(2026, 3, 11, 12, tzinfo=UTC)


def lexemes(text: str, language: str) -> list[str]:
    return list(Analyser().lexemes(text, language=language))


def asked(text: str, *in_scope: str) -> list[tuple[str, ...]]:
    return list(PreparedQuery(text, (), detect(text), 64).words(in_scope).groups)


def test_the_setting_takes_every_language() -> None:
    assert get_args(Language) == ("auto", *CODES)
    for code in CODES:
        dates = read_file(code).dates
        assert (dates is None) == (code == "en")
        if dates is not None:
            assert (len(dates.months), len(dates.weekdays)) == (12, 7), code
        assert read_language(code).code == code


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "We flew from Rio de Janeiro to La Paz"),
        ("en", "The meeting with 李 is at 5"),
        ("de", "Wo ist Anna?"),
        ("de", "WO WOHNT MEINE SCHWESTER"),
        ("de", "Der Termin mit 李 ist um 5"),
        ("de", "Danke!"),
        ("fr", "Salut, ça va ?"),
        ("es", "No lo sé, creo que sí"),
        ("pt", "Não sei, acho que sim"),
        ("it", "Non lo so, credo di sì"),
        ("nl", "Hoi, hoe gaat het met je?"),
        ("sv", "Hej, hur mår du?"),
        ("pl", "Cześć, jak się masz?"),
        ("tr", "Merhaba, nasılsın?"),
        ("ru", "Привет, как дела?"),
        ("ar", "مرحبا، كيف حالك؟"),
        ("hi", "नमस्ते, आप कैसे हैं?"),
        ("zh", "我用 Kubernetes 部署了"),
        ("ja", "東京に行きました"),
        ("ko", "안녕하세요, 잘 지내요?"),
        (None, "Barcelona!"),
        (None, "Kubernetes deployment failed"),
        (None, "東京"),
        (None, "12345 !!! \U0001f600"),
        (None, ""),
        (None, "Catch ya later!"),
        ("de", "Wovor hat Jonas Angst?"),
        ("zh", "阿杰害怕什么?"),
        (None, "Моя сестра живе у Києві, і їй подобається"),
        (None, "خواهرم در تهران زندگی می\u200cکند"),
    ],
)
def test_a_text_shows_its_language_or_none(language: str | None, text: str) -> None:
    assert detect(text) == language


@pytest.mark.parametrize(
    "text",
    [
        "\ud800 the \udfff house \ud83d",
        "\u202eالقطة\u202c the cat is \u200f\u200e here",
        "\u0301" * 5000,
        "a\u0301\u0302" * 3000,
        "\u093c\u064b\u3099" * 100,
        "\U0001f469\u200d\U0001f467" * 2000,
        "\u00ad\u200d\ufeff",
    ],
)
def test_odd_text_is_no_error(text: str) -> None:
    language = detect(text)
    for code in (language or "en", "de", "ar", "zh"):
        assert all(lexeme and "'" not in lexeme for lexeme in lexemes(text, code))
        assert isinstance(read_cues(text, code), int)
        may_have_dates(text, code)
    PreparedQuery(text, ["\u0301"], language, 64).words(["de", "zh", "ar"])


@pytest.mark.parametrize("piece", ["der Hund ", "我们昨天去了", "क", "x", "á", "昨日", "قبل "])
def test_detection_reads_the_start_of_a_long_text_only(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    detect(text)
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("de", "Häuser", "Haus"),
        ("de", "Straße", "Strassen"),
        ("fr", "déménagement", "deménager"),
        ("es", "canciones", "cancion"),
        ("pt", "informações", "informação"),
        ("it", "città", "CITTÀ"),
        ("ru", "собаку", "собаки"),
        ("ru", "чёрный", "черный"),
        ("ar", "الكتاب", "كِتَاب"),
        ("ar", "إسطنبول", "اسطنبول"),
        ("hi", "किताबों", "किताब"),
        ("hi", "हफ़्ते", "हफ्ते"),
        ("tr", "kitaplar", "kitap"),
        ("nl", "huizen", "huizen"),
        ("sv", "flickorna", "flicka"),
        ("pl", "Łodzi", "łodzi"),
    ],
)
def test_forms_of_a_word_have_one_lexeme(language: str, one: str, other: str) -> None:
    assert lexemes(one, language) == lexemes(other, language)
    assert len(lexemes(one, language)) == 1


def test_words_in_another_script_have_the_language_of_their_script() -> None:
    assert lexemes("The книги of 東京 are here", "en") == ["книг", "東", "京", "東京"]
    assert lexemes("Die книги", "de") == ["книг"]


def test_a_word_of_a_question_counts_once_for_all_languages_in_scope() -> None:
    assert asked("Wann war Anna in Barcelona?", "de") == [("anna",), ("barcelona",)]
    assert asked("Wann war Anna in Barcelona?", "es", "zh") == [("anna",), ("barcelona", "barcelon")]
    assert asked("Barcelona", "es", "en") == [("barcelon", "barcelona")]
    assert asked("When were we in Barcelona?", "en") == [("barcelona",)]


@pytest.mark.parametrize(
    ("question", "language", "words"),
    [
        ("我什么时候去了上海?", "zh", ["上海"]),
        ("我对什么过敏?", "zh", ["过敏"]),
        ("你是谁?", "zh", ["你是", "是谁"]),
        ("私はいつ東京に行きましたか?", "ja", ["東京", "行"]),
        ("アレルギーは何ですか", "ja", ["アレ", "レル", "ルギ", "ギー"]),
        ("りんごがすきなのは誰ですか?", "ja", ["りん", "んご", "ごが", "がす", "すき"]),
        ("언제 서울에서 이사했나요?", "ko", ["서울", "이사"]),
    ],
)
def test_words_that_say_nothing_are_taken_out_of_questions_without_spaces(
    question: str, language: str, words: list[str]
) -> None:
    assert [group[0] for group in asked(question, language)] == words
    assert set(words) <= set(lexemes(question, language))


@pytest.mark.parametrize(
    ("language", "text", "cues"),
    [
        ("de", "Ich habe zwei Katzen.", Cue.FIRST_PERSON | Cue.NUMBER),
        ("de", "Das Haus steht in Bonn.", 0),
        ("fr", "Ma sœur habite à Lyon.", Cue.FIRST_PERSON | Cue.CAPITALISED),
        ("es", "¿Vamos mañana?", Cue.TIME_WORD | Cue.ASKS),
        ("ar", "متى نذهب؟", Cue.ASKS),
        ("hi", "मेरे पास तीन किताबें हैं।", Cue.FIRST_PERSON | Cue.NUMBER),
        ("zh", "我昨天买了", Cue.FIRST_PERSON | Cue.TIME_WORD),
        ("ja", "明日行きますか。", Cue.TIME_WORD | Cue.ASKS),
    ],
)
def test_cues_are_those_of_the_language(language: str, text: str, cues: int) -> None:
    assert read_cues(text, language) == cues


@pytest.mark.parametrize(
    ("language", "question", "cue"),
    [
        ("de", "Seit wann wohnst du hier?", Cue.TIME_WORD),
        ("de", "Wie viele Katzen hat Anna?", Cue.NUMBER),
        ("fr", "Où habite ma sœur ?", Cue.CAPITALISED),
        ("fr", "Du thé ou du café ?", 0),
        ("es", "cuando fue la boda?", Cue.TIME_WORD),
        ("pt", "Quantos anos tem a Ana?", Cue.NUMBER),
        ("it", "Dov'è nato Marco?", Cue.CAPITALISED),
        ("ru", "Когда мы переехали?", Cue.TIME_WORD),
        ("ar", "أين تعمل أختي؟", Cue.CAPITALISED),
        ("hi", "मेरी बहन कब आई?", Cue.TIME_WORD),
        ("zh", "你什么时候搬家的?", Cue.TIME_WORD),
        ("ja", "猫は何匹いますか?", Cue.NUMBER),
        ("ko", "언제 이사했어요?", Cue.TIME_WORD),
    ],
)
def test_a_question_asks_for_a_kind_of_word(language: str, question: str, cue: int) -> None:
    assert question_cues(question, language) == cue


@pytest.mark.parametrize(
    ("language", "question", "role"),
    [
        ("de", "Was hast du mir empfohlen?", Role.ASSISTANT),
        ("de", "Wo wohnt meine Schwester?", Role.USER),
        ("fr", "Qu'est-ce que tu m'as recommandé ?", Role.ASSISTANT),
        ("es", "¿Dónde trabaja mi hermano?", Role.USER),
        ("zh", "你推荐了什么?", Role.ASSISTANT),
        ("de", "Wo wohnt Anna?", None),
    ],
)
def test_a_question_is_about_one_of_the_speakers(language: str, question: str, role: Role | None) -> None:
    assert read_intent(question, [], language).role == role


@pytest.mark.parametrize(
    ("language", "text", "days"),
    [
        ("de", "Gestern, nicht morgen. Guten Morgen! Heute morgen nicht.", "03-10 03-12"),
        ("de", "Letzten Freitag, nächste Woche, vor drei Tagen; seit drei Jahren", "03-06 03-16/03-22 03-08"),
        (
            "fr",
            "Avant-hier ; la semaine dernière, vendredi prochain, il y a trois jours",
            "03-09 03-02/03-08 03-13 03-08",
        ),
        (
            "es",
            "Ayer por la mañana; mañana no. El viernes pasado, la semana que viene",
            "03-10 03-12 03-06 03-16/03-22",
        ),
        ("es", "Hace tres días; desde hace dos años", "03-08"),
        ("pt", "Anteontem e amanhã; na próxima segunda, mês que vem", "03-09 03-12 03-16 04-01/04-30"),
        ("it", "L'altro ieri; la settimana scorsa, tra tre giorni", "03-09 03-02/03-08 03-14"),
        ("nl", "Gisteren; volgende vrijdag, drie dagen geleden, over twee weken", "03-10 03-13 03-08 03-23/03-29"),
        ("sv", "Igår, förra veckan, för tre dagar sedan", "03-10 03-02/03-08 03-08"),
        ("pl", "Pojutrze, w zeszły piątek, trzy dni temu", "03-13 03-06 03-08"),
        ("tr", "Yarın, öbür gün, geçen hafta, üç gün önce", "03-12 03-13 03-02/03-08 03-08"),
        ("ru", "Послезавтра, на прошлой неделе, три дня назад", "03-13 03-02/03-08 03-08"),
        ("ar", "بعد غد، الأسبوع الماضي، قبل ثلاثة أيام، بعد أسبوعين", "03-13 03-02/03-08 03-08 03-23/03-29"),
        ("hi", "पिछले हफ्ते, पिछले शुक्रवार, तीन दिन पहले", "03-02/03-08 03-06 03-08"),
        ("zh", "昨天,上周五,下周,三天前,两周后,上个月", "03-10 03-06 03-16/03-22 03-08 03-23/03-29 02-01/02-28"),
        ("ja", "昨日、先週の金曜日、来週、三日前、2週間後", "03-10 03-06 03-16/03-22 03-08 03-23/03-29"),
        ("ko", "어제, 지난 금요일, 다음 주, 3일 전", "03-10 03-06 03-16/03-22 03-08"),
    ],
)
def test_relative_dates_are_resolved_in_the_language(language: str, text: str, days: str) -> None:
    assert may_have_dates(text, language)
    found = resolve_dates(text, occurred_at=WEDNESDAY, code=language)
    spans = [f"{one.first_day:%m-%d}/{one.last_day:%m-%d}" for one in found]
    assert [span[:5] if span[:5] == span[6:] else span for span in spans] == days.split()
    assert all(text[one.start : one.end].strip() for one in found)


def test_the_last_friday_in_chinese_is_that_of_last_week() -> None:
    saturday = datetime(2026, 3, 14, tzinfo=UTC)
    assert [str(one.first_day) for one in resolve_dates("上周五", occurred_at=saturday, code="zh")] == ["2026-03-06"]
    assert [str(one.first_day) for one in resolve_dates("last Friday", occurred_at=saturday)] == ["2026-03-13"]


def test_the_day_of_a_turn_is_written_in_its_language() -> None:
    assert date_heading(WEDNESDAY) == "11 March 2026"
    assert date_heading(WEDNESDAY, "de") == "11 März 2026"
    assert date_heading(WEDNESDAY, "ru") == "11 марта 2026"
    assert date_heading(WEDNESDAY, "zh") == "2026年 3月 三月 11日"


def test_a_language_in_the_settings_is_that_of_all_texts_in_its_script() -> None:
    german, russian = Analyser("de"), Analyser("ru")
    assert [german.detect(text) for text in ("the dog is here", "12", "собака здесь")] == ["de", "de", "ru"]
    assert [russian.detect(text) for text in ("the dog is here", "і їй подобається Київ", "12")] == ["en", "ru", None]
