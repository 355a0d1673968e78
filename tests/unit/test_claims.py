"""Checks of summaries: what is refused, and what a good summary may do, in several languages."""

from datetime import UTC, datetime, timedelta

import pytest

from app.context.compaction.claims import Shown, SummarySource
from app.conversations.schemas.summaries import RefusedFor

MONDAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def source(*texts: str, before: str | None = None) -> SummarySource:
    """The texts as turns of two people, one a minute, after an earlier summary."""
    actors = ("Caroline", "Melanie")
    earlier = [] if before is None else [Shown(before)]
    turns = [Shown(text, actors[at % 2], MONDAY + timedelta(minutes=at)) for at, text in enumerate(texts)]
    return SummarySource([*earlier, *turns])


ENGLISH = source(
    "I went to a support group yesterday and heard such powerful stories.",
    "I painted a lake sunrise last year, and sold it for 1,250 dollars to Mr Henderson.",
    "We have three hundred members now, and 12.5 % of them come from Sweden.",
    "My grandson Oliver turns seven on 3 June 2023, we meet at 2:30 pm at the station.",
)
RUSSIAN = source("Вчера мы с Мариной ездили в Казань.", "Билеты стоили 2 500 рублей, а гостиница 18 тысяч.")
GERMAN = source("Gestern habe ich 1.250,50 Euro für den neuen Kühlschrank bezahlt.", "Die Lieferung kommt am 12. Mai.")
CHINESE = source("我昨天在上海买了三本书,一共花了一百二十元。", "下周五我们去杭州看西湖,火车票已经订好了。")
JAPANESE = source("昨日、京都で抹茶を買いました。3万円かかりました。", "来週は大阪へ行く予定です。")
ARABIC = source("سافرت أمس إلى القاهرة ودفعت ١٢٥٠ جنيها للفندق.", "سنزور الأهرامات يوم الجمعة.")


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (ENGLISH, "Caroline attended a support group on 7 May 2023. Melanie sold a painting for $1250 to Henderson."),
        (ENGLISH, "There are 300 members; 12,5 % are from Sweden. Two topics were discussed: a group and a painting."),
        (ENGLISH, "Oliver, the grandson, turns 7 on 2023-06-03. They meet at 14:30 at the station."),
        (ENGLISH, "On May 8th, 2023, Melanie told that she had painted a sunrise in 2022."),
        (
            ENGLISH,
            "- **Group**: Caroline went to a support group.\n- **Art**: Melanie painted a lake sunrise.\n1. Sweden",
        ),
        (
            ENGLISH,
            "Caroline besuchte am 7. Mai 2023 eine Gruppe, Melanie verkaufte ein Bild an Henderson für 1.250 Dollar.",
        ),
        (ENGLISH, "Mon: a support group and stories. Mon, later: the members, and Melanie on the lake sunrise."),
        (
            ENGLISH,
            "Points: (1) a support group, (2) a lake sunrise, (3) members from Sweden, (4) Oliver at the station.",
        ),
        (RUSSIAN, "Они ездили с Мариной в Казань, билеты стоили 2500 рублей, гостиница 18000 рублей."),
        (RUSSIAN, "Поездка в Казани: Марина, билеты, гостиница."),
        (GERMAN, "Am 7. Mai 2023 wurden für einen Kühlschrank 1250,50 Euro bezahlt, Lieferung am 12.05.2023."),
        (CHINESE, "昨天在上海买了3本书,花了120元,下周五去杭州看西湖。"),
        (JAPANESE, "京都で抹茶を買い、30000円かかった。来週は大阪へ行く。"),
        (ARABIC, "سافر أمس إلى القاهرة ودفع 1250 جنيها للفندق، وسيزور الأهرامات."),
    ],
)
def test_a_good_summary_is_accepted(shown: SummarySource, text: str) -> None:
    assert shown.refusal(text) is None


THINGS_PAINTED = ["lake", "support", "station", "group", "grandson"]


@pytest.mark.parametrize(
    ("shown", "text", "reason"),
    [
        (ENGLISH, " … ", RefusedFor.BLANK),
        (ENGLISH, "sadly", RefusedFor.TOO_SHORT),
        (ENGLISH, "Caroline went to a support group. " * 20, RefusedFor.TOO_LONG),
        (ENGLISH, "support group and stories " * 10, RefusedFor.REPEATED),
        (ENGLISH, '{"name": "recall", "arguments": {"query": "support group stories"}}', RefusedFor.NOT_TEXT),
        (ENGLISH, 'Here: {"summary": "a support group", "abstract": "stories"}', RefusedFor.NOT_TEXT),
        (ENGLISH, "<tool_call>support group</tool_call> and powerful stories", RefusedFor.NOT_TEXT),
        (ENGLISH, "The committee postponed its vote on dredging permits.", RefusedFor.UNRELATED),
        (ENGLISH, "Zwei Fischer stritten lange über das Wetter in der Bucht.", RefusedFor.UNRELATED),
        (ENGLISH, "Melanie sold a lake sunrise for 1,350 dollars.", RefusedFor.UNSUPPORTED_NUMBER),
        (ENGLISH, "Of the members, 13.5 % come from Sweden.", RefusedFor.UNSUPPORTED_NUMBER),
        (ENGLISH, "Caroline went to the support group on 19 May 2023.", RefusedFor.UNSUPPORTED_NUMBER),
        (ENGLISH, "The grandson Oliver turns 9, Melanie is 41 and 12 members paint.", RefusedFor.UNSUPPORTED_NUMBER),
        (ENGLISH, "Veronica went to a support group. Then Veronica painted a lake.", RefusedFor.UNSUPPORTED_NAME),
        (
            ENGLISH,
            "Melanie painted a lake sunrise and sold it to Xaverius and to Quintana.",
            RefusedFor.UNSUPPORTED_NAME,
        ),
        (ENGLISH, "Melanie sold a lake sunrise for 2,900 dollars.", RefusedFor.UNSUPPORTED_NUMBER),
        (ENGLISH, "Caroline et Melanie ont volé une banque et se cachent près du port.", RefusedFor.UNRELATED),
        (RUSSIAN, "Билеты в Казань стоили 2 500 рублей, а гостиница 28 тысяч.", RefusedFor.UNSUPPORTED_NUMBER),
        (GERMAN, "Der neue Kühlschrank wurde für 2.000 Euro bezahlt.", RefusedFor.UNSUPPORTED_NUMBER),
        (
            ENGLISH,
            " ".join(f"Melanie painted a {thing} sunrise." for thing in THINGS_PAINTED),
            RefusedFor.REPEATED,
        ),
        (JAPANESE, "京都で抹茶を買い、5万円かかった。", RefusedFor.UNSUPPORTED_NUMBER),
        (RUSSIAN, "Билеты в Казань стоили 3500 рублей, гостиница дороже.", RefusedFor.UNSUPPORTED_NUMBER),
        (GERMAN, "Der neue Kühlschrank wurde für 1.750,50 Euro bezahlt.", RefusedFor.UNSUPPORTED_NUMBER),
        (CHINESE, "昨天在上海买了三本书,花了850元。", RefusedFor.UNSUPPORTED_NUMBER),
        (CHINESE, "两位渔夫为海湾的天气争论了很久,渔网在风中晾晒。", RefusedFor.UNRELATED),
        (JAPANESE, "漁師たちは入り江の天気について長く言い争っていた。", RefusedFor.UNRELATED),
        (ARABIC, "سافر أمس إلى القاهرة ودفع 9750 جنيها للفندق.", RefusedFor.UNSUPPORTED_NUMBER),
    ],
)
def test_a_summary_that_the_turns_do_not_support_is_refused(
    shown: SummarySource, text: str, reason: RefusedFor
) -> None:
    assert shown.refusal(text) is reason


THINGS = "harbour pilots dredgers tugs cranes buoys anchors ropes sails masts hulls keels cabins galleys rudders"
TEAS = "Teas from the hills of Assam, Ceylon, Darjeeling and Yunnan cost little: black, green, white, smoked, pressed."


def test_a_rolling_summary_has_words_of_the_earlier_one_and_of_the_new_turns() -> None:
    earlier = " ".join(
        f"Tea {first}{last}ula." for first in "bdfgklmn" for last in ("ar", "em", "il", "os", "ub", "yr")
    )
    turns = [f"The {thing}s and {thing}ers of the {thing}age need repairs." for thing in THINGS.split()]
    rolling = source(*turns, before=f"{TEAS} {earlier}")
    assert rolling.refusal(TEAS) is RefusedFor.UNRELATED
    assert rolling.refusal(" ".join(turns[:3])) is RefusedFor.UNRELATED
    assert rolling.refusal(f"{TEAS} {turns[0]}") is None


def test_a_bad_earlier_summary_supports_nothing_but_itself() -> None:
    later = source("We bought a boat in Kiel.", "It cost 4000 euros.", before="Quintana sold 77 horses.")
    assert later.refusal("Quintana sold 77 horses. A boat in Kiel cost 4000 euros.") is None
    assert later.refusal("Quintana sold 770 horses. A boat in Kiel cost 4000 euros.") is RefusedFor.UNSUPPORTED_NUMBER


def test_a_repeated_source_may_have_a_repeated_summary() -> None:
    shown = source(*(f"I paid {number} euros to Maria in Lisbon." for number in range(30)))
    assert shown.refusal(" ".join(f"I paid {number} euros to Maria in Lisbon." for number in range(8))) is None
