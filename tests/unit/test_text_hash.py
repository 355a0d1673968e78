"""Equal texts have one hash; typing errors; phrases of requests; cues of refusals and instructions."""

import pytest

from app.index.analyser.cues import Cue, asks_what_was_said, read_cues, without_requests
from app.index.analyser.query_words import misspellings
from app.index.analyser.terms import hash_text
from app.index.analyser.words import fold


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("I don't know.", "i don’t  KNOW"),
        ("I don't know!", "i dont know"),
        ("Ja, gut!", "ja gut"),
        ("¿Qué?", "qué"),
        ("Straße 5", "STRASSE 5."),
        ("好的。", "好的"),
        ("ok 👍", "OK  👍!"),
        ("हाँ।", "हाँ"),
    ],
)
def test_case_white_space_and_punctuation_make_no_difference(text: str, same: str) -> None:
    assert hash_text(text) == hash_text(same) != 0


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("1.5 mg", "15 mg"),
        ("at 12:30", "at 1230"),
        ("-5 degrees", "5 degrees"),
        ("room 1 2", "room 12"),
        ("C#", "C"),
        ("C++", "C"),
        ("5 %", "5"),
        ("papa", "papá"),
        ("a.b@x.org", "ab@x.org"),
        ("x != y", "x = y"),
        ("👍", "👎"),
        ("10²", "102"),
        ("\N{WAVING BLACK FLAG}\U000e0067\U000e0062\U000e0065", "\N{WAVING BLACK FLAG}\U000e0067\U000e0062\U000e0073"),
    ],
)
def test_what_changes_the_meaning_makes_a_difference(text: str, other: str) -> None:
    assert hash_text(text) != hash_text(other)


def test_a_text_without_words_has_no_hash() -> None:
    assert [hash_text(text) for text in ("", " ", "…", "?!")] == [0] * 4
    assert -(2**63) <= hash_text("any text") < 2**63


def test_long_texts_are_compared_as_they_are() -> None:
    assert hash_text("A" * 9_000) != hash_text("a" * 9_000)
    assert fold("A b.") == "a b"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("eror", "error"),
        ("reedi", "redi"),
        ("typsecript", "typescript"),
        ("mongod", "mongodb"),
        ("kuberntes", "kubernetes"),
    ],
)
def test_one_typing_error_is_undone(typed: str, meant: str) -> None:
    assert meant in set(misspellings(typed))
    assert typed not in set(misspellings(typed))


@pytest.mark.parametrize(("word", "other"), [("mango", "mongo"), ("hors", "hous"), ("cat", "cart"), ("abcd", "bbcd")])
def test_short_words_and_first_letters_are_taken_as_typed(word: str, other: str) -> None:
    assert other not in set(misspellings(word))
    assert not list(misspellings("größe"))
    assert not list(misspellings("42abc"))


def test_requests_are_no_words_of_a_question() -> None:
    rest = without_requests("Can you list the order in which I brought up the sneakers in our conversations?")
    assert "sneakers" in rest
    assert not {"can", "list", "order", "conversations"} & set(rest.split())
    assert without_requests("Can you please summarize?") == "Can you please summarize?"
    assert "geheimnis" in without_requests("Kannst du mir bitte das Geheimnis sagen?", "de")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What did you recommend for dinner?", True),
        ("Can you remind me what you said about dinner?", True),
        ("Can you list what I ate for dinner?", False),
        ("Could you give me a summary of my plans?", False),
    ],
)
def test_a_request_asks_nothing_about_what_was_said(query: str, *, expected: bool) -> None:
    assert asks_what_was_said(query) is expected


@pytest.mark.parametrize(
    ("text", "code", "cue"),
    [
        ("I don’t know the password, sorry.", "en", Cue.REFUSES),
        ("I'm not sure.", "en", Cue.REFUSES),
        ("Das weiß ich leider nicht.", "de", Cue.REFUSES),
        ("Je ne sais pas.", "fr", Cue.REFUSES),
        ("わかりません。", "ja", Cue.REFUSES),
        ("The password is sunflower.", "en", 0),
        ("I don't know much about it, but " + "here is what I found. " * 20, "en", 0),
        ("Always answer in French.", "en", Cue.INSTRUCTS),
        ("Please never use tabs.", "en", Cue.INSTRUCTS),
        ("Immer auf Deutsch antworten.", "de", Cue.INSTRUCTS),
        ("I always answer in French.", "en", 0),
    ],
)
def test_refusals_and_instructions_are_read(text: str, code: str, cue: int) -> None:
    assert read_cues(text, code) & (Cue.REFUSES | Cue.INSTRUCTS) == cue
