"""Long texts are analysed in slices: the lexemes are those of the whole text."""

import os
import re
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.index.analyser import analyser
from app.index.analyser.analyser import Analyser
from app.index.analyser.words import fold, words

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "2000"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
common = settings(max_examples=max(100, EXAMPLES // 10), suppress_health_check=list(HealthCheck), print_blob=True)
# letters, marks that belong to the letter before them, apostrophes, scripts without spaces, what stands between words
awkward = st.text("abΣςﬁ\uff11é \u0301\u0338'\u2019_-.,=\n日本ไทก\U0001f600", max_size=60)
texts = awkward | st.text(st.characters(blacklist_categories=("Cs",)), max_size=60)


@pytest.mark.parametrize("size", [1, 3])
def test_a_text_has_the_same_lexemes_in_slices(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    whole = analyser._SLICE_CHARACTERS  # noqa: SLF001

    @common
    @given(text=texts)
    def check(text: str) -> None:
        one = Analyser()
        found: list[object] = []
        for slice_size in (whole, size):
            monkeypatch.setattr(analyser, "_SLICE_CHARACTERS", slice_size)
            found.append(
                (
                    list(one.lexemes(text)),
                    list(one.lexemes(text, language="de")),
                    one.document(text, actor="ann", occurred_at=NOW, max_bytes=10_000),
                )
            )
        assert found[0] == found[1]

    check()


@common
@given(text=texts)
def test_a_short_text_has_the_same_tsvector_as_a_long_one(text: str) -> None:
    lexemes = list(Analyser().lexemes(text))
    assert (len(lexemes), *analyser._short_tsvector(lexemes)) == analyser._long_tsvector(lexemes)  # noqa: SLF001


@common
@given(text=st.text("aB1 'Zk_-.\u2019", max_size=60))
def test_ascii_has_the_same_words_as_any_other_text(text: str) -> None:
    with_mark = words(f"{text} \u00bf")  # no word, and not ASCII
    assert words(text) == with_mark


@common
@given(said=st.lists(st.text("abÄß1.-_@'", min_size=1, max_size=8).map(lambda word: f"x{word}y"), max_size=8))
def test_quotes_commas_dashes_case_and_space_around_words_are_folded(said: list[str]) -> None:
    other = ["-", *(f"\u201c{word.upper()}\u201d," for word in said)] if not re.search(r"\d", "".join(said)) else said
    assert fold("  \n".join(other)) == fold(" ".join(said))


def test_a_long_text_is_cut_into_slices_that_are_all_of_it() -> None:
    text = "Some words, and then others. " * 3000
    slices = list(analyser._slices(text))  # noqa: SLF001
    assert "".join(slices) == text
    assert max(map(len, slices)) < 9000
