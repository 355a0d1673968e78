"""What a turn supports of a model's statement: words, numbers, dates and subjects, and all that it does not say."""

from datetime import UTC, date, datetime

import pytest

from app.index.analyser.analyser import Analyser
from app.memory.extraction.turn_support import TurnSupport
from app.memory.facts.spelling import names_to_actors

SAID = datetime(2023, 5, 10, 8, tzinfo=UTC)  # a Wednesday
ACTORS = names_to_actors([("ana", ["Ana Lopez", "Anita"]), ("bo", ["Robert", "Bobby"])])


def turn(text: str) -> TurnSupport:
    return TurnSupport(text, said_at=SAID, analyser=Analyser())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I love going on hikes.", "hiking"),
        ("I live in Berlin.", "berlin"),
        ("Ich wohne in München.", "Munchen"),
        ("I moved to São Paulo", "Sao Paulo"),
        ("My dog is called Rex.", "dog called Rex"),
        ("I have two dogs and a cat.", "2 dogs"),
        ("I have 2 dogs", "two dogs"),
        ("It cost me 1,000 dollars", "1000 dollars"),
        ("I went to the LGBTQ support group", "an LGBTQ support group"),
        ("We work part time at the bakery", "part-time"),
        ("I'm Ana's neighbour", "Ana"),
        ("I was born on 8 May 1990", "1990-05-08"),
        ("My birthday is 1990-05-08", "May 8, 1990"),
        ("We met on May 8th", "8 May 2023"),
        ("I went to the support group yesterday", "9 May 2023"),
        ("I went last Friday", "2023-05-05"),
        ("I went last Friday", "last Friday"),
        ("We went camping last month", "April 2023"),
        ("We moved there three years ago", "2020"),
        ("I married him today", "10 May 2023"),
        ("We married on Saturday", "13 May 2023"),
        ("Letzten Monat war ich in Rom", "April 2023"),
        ("我喜欢喝绿茶", "绿茶"),
        ("我住在北京市朝阳区", "北京"),
        ("私は東京に住んでいます", "東京"),
        ("저는 서울에 살아요", "서울"),
        ("我2023年5月8日结婚", "2023-05-08"),
        ("Я живу в Москве", "Москва"),
        ("J'habite à Genève avec mes deux enfants", "2 enfants"),
        ("I take C++ and COVID-19 lessons", "COVID-19"),
        ("Yes, it is", "it"),
        ("I am twenty-five years old", "25"),
        ("I get up at 05:30", "5:30"),
        ("J'adore l'opéra", "opéra"),
        ("Vivo all'Aquila", "L'Aquila"),
        ("İstanbul'da yaşıyorum", "İstanbul"),
    ],
)  # fmt: skip
def test_words_numbers_and_dates_that_a_turn_states_are_supported(text: str, value: str) -> None:
    assert turn(text).supports(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I ordered a kettle.", "Paris"),
        ("I ordered a kettle.", "a dragon from Mars"),
        ("I don't eat meat.", "vegetarian"),
        ("I have 2 dogs", "3 dogs"),
        ("I have twenty-five dogs", "35 dogs"),
        ("我每天早上跑五公里", "我每天早上跑十公里"),
        ("J'habite à L'Aquila", "Ankara"),
        ("I have 20.5 litres", "20 litres"),
        ("I am 34", "35"),
        ("I paid 1,000", "1"),
        ("I live in Berlin", "London"),
        ("I like the green tea and the house", "green tea in Paris"),
        ("I went to the support group yesterday", "8 May 2023"),
        ("We went camping last month", "15 April 2023"),
        ("I was born on 8 May", "8 May 1990"),
        ("We met on May 8th", "9 May 2023"),
        ("We met", "10 May 2023"),
        ("我喜欢喝绿茶", "红茶"),
        ("我喜欢喝绿茶", "上海"),
        ("저는 서울에 살아요", "부산"),
        ("I ordered a kettle.", "the"),
        ("I ordered a kettle.", "…"),
        ("I am at home", "of a to"),
        ("", "Berlin"),
    ],
)  # fmt: skip
def test_what_a_turn_does_not_say_is_not_supported(text: str, value: str) -> None:
    assert not turn(text).supports(value)


def test_no_words_may_be_added() -> None:
    support = turn("We joined the pottery workshop")
    assert support.supports("the pottery workshop")
    assert not support.supports("member of the pottery workshop")
    assert not support.supports("London pottery workshop")


@pytest.mark.parametrize(
    ("text", "speaker", "subject"),
    [
        ("I like tea", "ana", "I"),
        ("I like tea", "ana", "ana"),
        ("I like tea", "ana", "Ana Lopez"),
        ("I like tea", "ana", "the user"),
        ("I like tea", None, "the user"),
        ("I like tea", None, "Ana"),
        ("Robert works at Acme", "ana", "bo"),
        ("Bobby works at Acme", "ana", "Robert"),
        ("My sister lives in Rome", "ana", "Ana's sister"),
        ("My sister lives in Rome", "ana", "my sister"),
        ("Mia is my sister", "ana", "Mia"),
        ("We live in Oslo", "ana", "we"),
    ],
)  # fmt: skip
def test_a_subject_is_the_speaker_or_in_the_turn(text: str, speaker: str | None, subject: str) -> None:
    assert turn(text).supports_subject(subject, speaker=speaker, owner="ana", actors=ACTORS)


@pytest.mark.parametrize(
    ("text", "speaker", "subject"),
    [
        ("I like tea", "ana", "Robert"),
        ("I like tea", "bo", "Ana"),
        ("I like tea", "bo", "the user"),
        ("I like tea", "bo", "Melanie"),
        ("My sister lives in Rome", "ana", "Ana's brother"),
        ("I like tea", "ana", "she"),
        ("I like tea", "ana", "admin"),
    ],
)  # fmt: skip
def test_another_subject_is_not_supported(text: str, speaker: str, subject: str) -> None:
    assert not turn(text).supports_subject(subject, speaker=speaker, owner="ana", actors=ACTORS)


def test_of_yes_and_no_the_predicate_must_occur() -> None:
    assert turn("I am vegan").supports_object("yes", predicate="is_vegan")
    assert not turn("I eat meat").supports_object("true", predicate="is_vegan")


@pytest.mark.parametrize(
    ("text", "day", "is_supported"),
    [
        ("I moved here in 2019", date(2019, 1, 1), True),
        ("I moved here in 2019", date(2018, 1, 1), False),
        ("I have lived here for three years", date(2020, 1, 1), True),
        ("I live here", date(2023, 5, 10), True),
        ("I live here", date(2023, 5, 9), False),
        ("I live here", date(2023, 1, 1), False),
        ("since May", date(2023, 5, 1), True),
    ],
)
def test_the_day_since_when_it_is_so_must_be_in_the_turn(text: str, day: date, *, is_supported: bool) -> None:
    assert turn(text).supports_day(day) is is_supported


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("I am allergic to peanuts.", "not allergic to peanuts"),
        ("I am allergic to peanuts.", "no peanuts"),
        ("I live in Berlin now.", "not Berlin"),
        ("I drink coffee with milk.", "coffee without milk"),
        ("Ich esse Fleisch.", "kein Fleisch"),
        ("我住在柏林。", "不住在柏林"),
        ("私は肉を食べます。", "肉を食べません"),
        ("저는 고기를 먹어요.", "고기를 안 먹어요"),
        ("I moved to Berlin with my dog Rex.", "moved to Berlin with wife"),
        ("I moved to Berlin with my dog Rex.", "wife and dog Rex"),
        ("My mother Eva lives in Kiel.", "daughter Eva in Kiel"),
        ("We love our big garden.", "small garden"),
        ("I swim at 5 pm.", "5 am"),
        ("I swim at 17:00.", "5 am"),
        ("It was -5 degrees.", "5 degrees"),
        ("It was 5 degrees.", "-5 degrees"),
        ("I pay $900 for it.", "€900"),
    ],
)
def test_a_turn_does_not_support_the_opposite_or_another_thing(text: str, stated: str) -> None:
    assert not turn(text).supports_object(stated, predicate="is")


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("I am allergic to peanuts.", "allergic to peanuts"),
        ("I don't eat meat.", "no meat"),
        ("Ich esse kein Fleisch.", "kein Fleisch"),
        ("Я не ем мясо.", "не мясо"),
        ("我不住在柏林。", "不住在柏林"),
        ("I swim at 17:00.", "5 pm"),
        ("I swim at 5 pm.", "17:00"),
        ("It was -5 degrees.", "-5 degrees"),
        ("Read the pages 3-5.", "5 pages"),
        ("I pay 900 euros.", "€900"),
    ],
)
def test_a_turn_supports_what_it_says_in_other_forms(text: str, stated: str) -> None:
    assert turn(text).supports_object(stated, predicate="is")
