"""The bundled embedder: right vectors, fair order, bounded queue, calm cancellation."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer
from turnkeep_minilm import FOLDER, GRAPH_FILE, MODEL_FILE, TOKENIZER_FILE

from app.core.errors import Unavailable
from app.providers.local import minilm
from app.providers.local.embedder import LocalEmbedder
from app.providers.local.fair_queue import FairQueue
from app.providers.local.minilm import SPACE, MiniLM
from app.providers.local.multilingual import multilingual
from app.providers.schemas import Embedder, Purpose, Vectors

SENTENCE = "Maria adopted a cat in Lisbon because it kept following her home from work every evening "


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[LocalEmbedder]:
    embedder = LocalEmbedder(threads=2)
    await embedder.start()
    yield embedder
    await embedder.close()


async def test_vectors_are_unit_length_float32_and_in_the_order_given(embedder: LocalEmbedder) -> None:
    typed: Embedder = embedder
    assert typed.ready()
    texts = ["a kitten sat on the rug", "stock markets fell sharply", "a cat lay on the carpet"]
    vectors = await typed.embed(texts, purpose="document")
    assert vectors.shape == (3, SPACE.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[2] > 0.6
    assert vectors[0] @ vectors[1] < 0.3


async def test_no_texts_give_no_vectors(embedder: LocalEmbedder) -> None:
    assert (await embedder.embed([], purpose="query")).shape == (0, SPACE.dimensions)


async def test_an_empty_text_has_a_vector(embedder: LocalEmbedder) -> None:
    assert np.isfinite(await embedder.embed(["", " \n"], purpose="document")).all()


async def test_the_same_text_has_the_same_vector_with_any_texts_beside_it(embedder: LocalEmbedder) -> None:
    alone = await embedder.embed(["When did Maria go to Lisbon?"], purpose="query")
    crowd, among = await asyncio.gather(
        embedder.embed(["word " * 300] * 10, purpose="document"),
        embedder.embed(["x", "When did Maria go to Lisbon?", "y" * 500], purpose="document"),
    )
    assert len(crowd) == 10
    assert np.array_equal(among[1], alone[0])


async def test_thirty_two_calls_at_once_are_all_answered(embedder: LocalEmbedder) -> None:
    texts = [f"turn {number} about something else" for number in range(32)]
    answers = await asyncio.gather(*(embedder.embed([text], purpose="query") for text in texts))
    together = await embedder.embed(texts, purpose="document")
    assert np.array_equal(np.vstack(answers), together)


def test_vectors_are_those_of_the_published_graph() -> None:
    published = onnxruntime.InferenceSession(str(FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(FOLDER / TOKENIZER_FILE))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    model = MiniLM(FOLDER)
    texts = ("a kitten sat on the rug", SENTENCE, SENTENCE * 20, "", "straße 東京 \U0001f98a [PAD] zz", "7 " * 60)
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids])
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        expected = published.run(None, inputs)[0][0].mean(axis=0)
        assert model.embed_one(text) @ expected / np.linalg.norm(expected) > 0.999999


@pytest.mark.parametrize("name", [MODEL_FILE, GRAPH_FILE, TOKENIZER_FILE])
@pytest.mark.parametrize("size", [0, 12_000])
def test_a_part_of_a_file_is_refused_at_once(tmp_path: Path, name: str, size: int) -> None:
    for file in (MODEL_FILE, GRAPH_FILE, TOKENIZER_FILE):
        content = (FOLDER / file).read_bytes()
        (tmp_path / file).write_bytes(content[:size] if file == name else content)
    with pytest.raises(Unavailable) as refusal:
        MiniLM(tmp_path)
    assert refusal.value.code == "embedder_assets_damaged"


def test_the_files_may_be_links(tmp_path: Path) -> None:
    for name in (MODEL_FILE, GRAPH_FILE, TOKENIZER_FILE):
        (tmp_path / name).symlink_to(FOLDER / name)
    assert np.array_equal(MiniLM(tmp_path).embed_one(SENTENCE), MiniLM(FOLDER).embed_one(SENTENCE))


async def test_the_guard_is_asked_before_anything_is_embedded() -> None:
    def guard() -> None:
        raise RuntimeError("a transaction is open")

    embedder = LocalEmbedder(guard=guard)
    with pytest.raises(RuntimeError, match="transaction"):
        await embedder.embed(["text"], purpose="document")
    await embedder.close()


async def test_missing_assets_are_named_with_their_cure(tmp_path: Path) -> None:
    embedder = LocalEmbedder(minilm.minilm(tmp_path))
    with pytest.raises(Unavailable, match="make assets") as refusal:
        await embedder.start()
    assert refusal.value.code == "embedder_assets_missing"
    with pytest.raises(Unavailable):
        await embedder.embed(["text"], purpose="document")
    await embedder.close()


async def test_a_closed_embedder_refuses() -> None:
    embedder = LocalEmbedder()
    await embedder.close()
    with pytest.raises(Unavailable) as refusal:
        await embedder.embed(["text"], purpose="query")
    assert refusal.value.code == "embedder_closed"


def test_a_short_text_is_one_piece_unchanged() -> None:
    assert LocalEmbedder(minilm.minilm(Path("/nowhere"))).split(" short ") == [" short "]


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE * 100,
        SENTENCE.replace(" ", "") * 100,
        "語" * 3000,
        "한국어" * 900,
        "q8#f;" * 2000,
        "a" * 50_000,
        "start" + " " * 1500 + "end",
        "\N{GRINNING FACE}" * 2000,
        "1234567890 " * 900,
    ],
)
def test_pieces_cover_the_text_and_are_read_whole(embedder: LocalEmbedder, text: str) -> None:
    pieces = embedder.split(text)
    model: Any = embedder._loaded()  # noqa: SLF001
    assert all(len(model._tokenizer.encode(piece).ids) <= 256 for piece in pieces)  # noqa: SLF001
    position = 0
    for piece in pieces:
        # The furthest place the piece can stand without leaving a gap: the texts repeat themselves.
        found = text.rfind(piece, 0, position + len(piece))
        assert 0 <= found <= position
        position = found + len(piece)
    assert position == len(text)
    assert embedder.split(text, max_pieces=2) == pieces[:2]


def test_neighbouring_pieces_share_some_words(embedder: LocalEmbedder) -> None:
    text = " ".join(f"word{number}" for number in range(400))
    first, second, *_ = embedder.split(text)
    assert set(first.split()) & set(second.split())
    assert second.split()[0].startswith("word")


def test_a_text_without_a_token_is_one_piece(embedder: LocalEmbedder) -> None:
    assert embedder.split(" \n" * 5000) == [" \n" * 5000]


class SlowModel:
    """Stands in for the model: records order and purposes, and waits at a gate."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.begun = threading.Event()
        self.order: list[str] = []
        self.purposes: list[Purpose] = []

    def embed_one(self, text: str, purpose: Purpose) -> Vectors:
        self.begun.set()
        assert self.gate.acquire(timeout=60)
        self.order.append(text)
        self.purposes.append(purpose)
        if text == "broken":
            raise ValueError(text)
        return np.full(2, len(self.order), dtype=np.float32)

    def queue(self, max_rows: int = 1000) -> FairQueue:
        return FairQueue(self.embed_one, dimensions=2, threads=1, max_rows=max_rows)


async def test_a_query_waits_for_one_row_and_not_for_the_append_before_it() -> None:
    model = SlowModel()
    queue = model.queue()
    append = asyncio.create_task(queue.run([f"document {number}" for number in range(500)], "document"))
    await asyncio.to_thread(model.begun.wait, 60)
    query = asyncio.create_task(queue.run(["query"], "query"))
    await asyncio.sleep(0)
    model.gate.release(2)
    await asyncio.wait_for(query, 60)
    assert model.order == ["document 0", "query"]
    model.gate.release(499)
    assert len(await append) == 500
    await queue.close()


async def test_a_small_append_has_its_turn_beside_a_large_one() -> None:
    model = SlowModel()
    queue = model.queue()
    large = asyncio.create_task(queue.run(["large"] * 100, "document"))
    await asyncio.to_thread(model.begun.wait, 60)
    small = asyncio.create_task(queue.run(["small"] * 3, "document"))
    await asyncio.sleep(0)
    model.gate.release(8)
    await asyncio.wait_for(small, 60)
    assert model.order.count("large") <= 5
    model.gate.release(100)
    await large
    await queue.close()


async def test_a_flood_of_queries_does_not_stop_documents() -> None:
    model = SlowModel()
    queue = model.queue()
    flood = asyncio.create_task(queue.run(["query"] * 100, "query"))
    append = asyncio.create_task(queue.run(["document"], "document"))
    await asyncio.sleep(0)
    model.gate.release(20)
    await asyncio.wait_for(append, 60)
    assert "document" in model.order[:10]
    model.gate.release(100)
    await flood
    await queue.close()


async def test_a_full_queue_refuses_what_may_be_tried_again_and_keeps_what_it_has() -> None:
    model = SlowModel()
    queue = model.queue(max_rows=4)
    first = asyncio.create_task(queue.run(["one", "two", "three"], "document"))
    await asyncio.to_thread(model.begun.wait, 60)
    with pytest.raises(Unavailable) as refusal:
        await queue.run(["four", "five", "six"], "document")
    assert refusal.value.code == "embedder_overloaded"
    assert refusal.value.retryable
    query = asyncio.create_task(queue.run(["a query has its own room"], "query"))
    await asyncio.sleep(0)
    model.gate.release(10)
    assert len(await first) == 3
    assert len(await query) == 1
    await queue.close()


async def test_a_cancelled_call_leaves_the_queue_and_its_room() -> None:
    model = SlowModel()
    queue = model.queue(max_rows=100)
    abandoned = asyncio.create_task(queue.run(["abandoned"] * 100, "document"))
    await asyncio.to_thread(model.begun.wait, 60)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    kept = asyncio.create_task(queue.run(["kept"] * 100, "document"))
    await asyncio.sleep(0)
    model.gate.release(101)
    assert len(await asyncio.wait_for(kept, 60)) == 100
    assert model.order.count("abandoned") == 1
    await queue.close()


async def test_a_text_the_model_cannot_take_fails_its_own_call_only() -> None:
    model = SlowModel()
    queue = model.queue()
    bad = asyncio.create_task(queue.run(["broken", "after"], "document"))
    good = asyncio.create_task(queue.run(["good"], "document"))
    model.gate.release(10)
    with pytest.raises(Unavailable) as refusal:
        await bad
    assert refusal.value.code == "embedder_failed"
    assert len(await good) == 1
    await queue.close()


async def test_closing_refuses_what_still_waits() -> None:
    model = SlowModel()
    queue = model.queue()
    waiting = asyncio.create_task(queue.run(["one", "two", "three"], "document"))
    await asyncio.to_thread(model.begun.wait, 60)
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0.05)
    model.gate.release(3)
    await closing
    with pytest.raises(Unavailable) as refusal:
        await waiting
    assert refusal.value.code == "embedder_closed"
    assert len(model.order) == 1


async def test_the_backlog_of_a_job_waits_for_documents_and_is_not_forgotten() -> None:
    model = SlowModel()
    queue = model.queue()
    backlog = asyncio.create_task(queue.run(["backlog"] * 20, "backlog"))
    await asyncio.to_thread(model.begun.wait, 60)
    append = asyncio.create_task(queue.run(["document"] * 20, "document"))
    await asyncio.sleep(0)
    model.gate.release(24)
    await asyncio.wait_for(append, 60)
    assert model.order[:10] == ["backlog", *["document"] * 8, "backlog"]
    assert model.order[:23].count("document") == 20
    model.gate.release(40)
    await backlog
    await queue.close()
    assert model.purposes == model.order


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has thread priorities: run it on Linux")
async def test_the_threads_of_the_model_give_way_to_the_event_loop() -> None:
    found: list[int] = []

    def embed_one(_text: str, _purpose: Purpose) -> Vectors:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return np.ones(2, dtype=np.float32)

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    queue = FairQueue(embed_one, dimensions=2, threads=2, max_rows=10)
    await queue.run(["one", "two"], "document")
    await queue.close()
    assert found == [min(own + 10, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


async def test_only_texts_that_a_job_embeds_return_working_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: dict[str, bool] = {}
    embedder = LocalEmbedder(threads=1)
    model = embedder._loaded()  # noqa: SLF001
    embed_one = model.embed_one

    def recording(text: str, *, return_memory: bool) -> Vectors:
        returned[text] = return_memory
        return embed_one(text, return_memory=return_memory)

    monkeypatch.setattr(model, "embed_one", recording)
    vectors = [await embedder.embed([purpose], purpose=purpose) for purpose in ("query", "document", "backlog")]
    await embedder.close()
    assert returned == {"query": False, "document": False, "backlog": True}
    assert np.array_equal(vectors[2][0], embed_one("backlog"))


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("Where is it?", (True, True)),
        ("Ob sie heute für Gäste öffnen?", (True, True)),
        ("", (True, True)),
        ("42 – 3 %…", (True, True)),
        ("Куда мы пойдём?", (False, True)),
        ("我在哪里？", (False, True)),
        ("كلمة", (False, True)),
        ("パス はどこ", (False, True)),
        ("मूंगफली", (False, False)),
        ("What does मूंगफली mean?", (True, True)),
        ("მადლობა", (False, False)),
    ],
)
def test_a_model_reads_texts_in_the_scripts_that_it_has_words_for(text: str, is_read: tuple[bool, bool]) -> None:
    assert (minilm.minilm().reads(text), multilingual().reads(text)) == is_read
