"""What is computed in a faster way for most turns is the same as in the general way."""

from dataclasses import replace

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.context.assembly.highlights import density, sentences
from app.context.compaction.cut import at_boundary, oldest_half
from app.conversations.hash_chain import canonical_form
from app.formats.schemas import CanonicalTurn, Kind, Role
from app.providers.tokens import EncodingName, TiktokenCounter

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
WORDS = st.sampled_from(["I", "we're", "US", "usual", "MarCh", "months", "last", "next_", "ago.", "was", "5", "(Anna)"])


@given(st.dictionaries(st.sampled_from(["role", "kind", "actor", "content", "model"]), st.none() | TEXTS))
def test_the_form_of_texts_is_that_of_rfc_8785(fields: dict[str, str | None]) -> None:
    assert canonical_form(dict(fields)) == rfc8785.dumps(
        {name: value for name, value in fields.items() if value is not None}
    )


@given(st.lists(st.tuples(st.sampled_from([Role.USER, Role.ASSISTANT]), st.integers(0, 9)), min_size=1), st.data())
def test_turns_of_text_are_cut_like_turns_of_parts(given_turns: list[tuple[Role, int]], data: st.DataObject) -> None:
    texts = [
        CanonicalTurn(str(at), at, role, Kind.USER_MESSAGE, "anna", "text", content_tokens=tokens)
        for at, (role, tokens) in enumerate(given_turns)
    ]
    parts = [replace(turn, content=[{"type": "text", "text": "text"}]) for turn in texts]
    cut, whole = data.draw(st.integers(0, len(texts))), data.draw(st.booleans())
    assert at_boundary(texts, cut, whole=whole) == at_boundary(parts, cut, whole=whole)
    assert oldest_half(texts, max_turns=3, max_tokens=20) == oldest_half(parts, max_turns=3, max_tokens=20)


@given(st.lists(WORDS, min_size=1, max_size=8))
def test_words_in_ascii_weigh_as_much_as_in_other_texts(found: list[str]) -> None:
    text = " ".join(found)
    # beside letters that are in no list, the length has its highest weight in both
    long = f"{text}{' x' * 100}"
    assert density(long) == density(f"{long} ñ")


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
@given(text=TEXTS | st.lists(WORDS, min_size=1).map(" ".join))
def test_a_sentence_has_at_least_one_token_for_each_word(encoding: EncodingName, text: str) -> None:
    for sentence in sentences(text):
        assert COUNTERS[encoding].count(sentence) > sentence.count(" ")


COUNTERS: dict[EncodingName, TiktokenCounter] = {
    "o200k_base": TiktokenCounter("o200k_base"),
    "cl100k_base": TiktokenCounter("cl100k_base"),
}
