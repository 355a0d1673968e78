"""What a turn supports of the object that a model states: its words, denials, numbers with their signs, and times."""

from datetime import UTC, datetime

import pytest

from app.index.analyser.analyser import Analyser
from app.memory.extraction.turn_support import TurnSupport


def supports(text: str, stated: str) -> bool:
    turn = TurnSupport(text, said_at=datetime(2026, 5, 9, tzinfo=UTC), analyser=Analyser())
    return turn.supports_object(stated, predicate="is")


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
    assert not supports(text, stated)


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
    assert supports(text, stated)
