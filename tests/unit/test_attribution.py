"""Doubtful sentences of summaries: a participant gets what only another one said of itself."""

from datetime import UTC, datetime

import pytest

from app.context.compaction.attribution import doubtful_sentences
from app.context.compaction.claims import Shown

NOW = datetime(2023, 5, 8, tzinfo=UTC)
TALK = [
    Shown(text, actor, NOW)
    for actor, text in [
        ("caroline", "I went to a LGBTQ support group yesterday and it was so powerful."),
        ("melanie", "That's cool! Did you hear any inspiring stories at the group?"),
        (
            "melanie",
            "I painted a lake sunrise last year. You should paint with watercolours too, your sketches are great!",
        ),
        ("caroline", "Thanks, Mel! Painting calms me. Are you taking your kids swimming at the quarry pond?"),
        ("melanie", "Yes, we go there on Sundays."),
    ]
]
GERMAN = [
    Shown("Ich habe gestern in Köln ein gebrauchtes Klavier gekauft.", "Lena", NOW),
    Shown("Ich nehme seit Montag Unterricht im Bogenschießen.", "Jonas", NOW),
]


def marked(summary: str, shown: list[Shown], earlier: tuple[str, ...] = ()) -> list[str]:
    found = doubtful_sentences(summary, shown, earlier=earlier)
    assert {one.reason for one in found} <= {"said_by_another"}
    return [summary[one.start : one.end] for one in found]


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("Melanie went to a LGBTQ support group.", TALK),
        ("Caroline painted a lake sunrise last year.", TALK),
        ("Jonas kaufte ein gebrauchtes Klavier in Köln.", GERMAN),
    ],
)
def test_a_sentence_with_the_act_of_another_one_is_marked(sentence: str, shown: list[Shown]) -> None:
    summary = f"They talked 😀. {sentence} It was a good day."
    assert marked(summary, shown) == [sentence]


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("Caroline went to a LGBTQ support group.", TALK),
        ("Melanie painted a lake sunrise last year.", TALK),
        ("Melanie takes her kids swimming at the quarry pond.", TALK),  # the other one says it of her
        ("Caroline made great sketches and should paint with watercolours.", TALK),
        ("Melanie praised Caroline for the LGBTQ support group.", TALK),  # it names both
        ("She went to a LGBTQ support group.", TALK),  # it names neither
        ("Melanie was happy.", TALK),
        ("Lena kaufte ein gebrauchtes Klavier in Köln.", GERMAN),
    ],
)
def test_a_supported_or_unclear_sentence_is_not_marked(sentence: str, shown: list[Shown]) -> None:
    assert marked(sentence, shown) == []


def test_words_of_an_earlier_summary_support_all_participants() -> None:
    before = Shown("Melanie went to a LGBTQ support group.")
    assert marked("Melanie went to a LGBTQ support group.", [before, *TALK]) == []


def test_a_doubtful_sentence_stays_doubtful_when_it_is_repeated() -> None:
    sentence = "Melanie went to a LGBTQ support group."
    before = Shown(sentence)
    assert marked(f"{sentence} They talked.", [before, *TALK], earlier=(sentence,)) == [sentence]
