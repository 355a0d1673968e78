"""An embedder behind HTTP: OpenAI's, or any endpoint with its API.

Hides the client, its limits and its failures. Every failure is one of four errors. The endpoint limits the rate of
requests (`embedder_rate_limited`), is overloaded (`embedder_overloaded`), returns no valid embedding
(`embedder_invalid`), or refuses or does not answer (`embedder_unavailable`). Every answer is checked: as many vectors
as texts, of the right dimensions, with finite numbers. The vectors are then normalised to length 1.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from app.core.errors import AppError, RateLimited, Unavailable
from app.core.telemetry import get_logger
from app.providers.embed_meter import EmbedMeter
from app.providers.endpoint import EndpointErrors, client_of, wait_to_retry
from app.providers.pieces import split_by_estimate
from app.providers.schemas import EmbeddingSpaceName, Purpose, Vectors
from app.settings.models import EmbeddingSettings, Endpoint

if TYPE_CHECKING:
    from openai.types import CreateEmbeddingResponse

PROVIDER: Final = "openai"
KNOWN_DIMENSIONS: Final = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
"""Dimensions of OpenAI's own models, so that a start does not need the endpoint."""

_QUEUE_TEXTS = 8192
# a model on one machine computes few requests at once, and a service that limits them says how long to wait
_CONCURRENCY: Final = 4


class _WrongWidthError(Exception):
    """Vectors with the wrong number of dimensions. The endpoint may return the right one if the request names it."""


_ERRORS: Final = EndpointErrors(
    name="The embedding endpoint",
    rate_limited="embedder_rate_limited",
    overloaded="embedder_overloaded",
    unavailable="embedder_unavailable",
    invalid="embedder_invalid",
    expected="embedding",
    event="embedder.refused",
)


class OpenAIEmbedder:
    """An endpoint as an `Embedder`.

    At most `_CONCURRENCY` requests run for documents, and as many for queries. `guard` is called at the beginning of
    every `embed`. It raises if embedding is not allowed there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        settings: EmbeddingSettings,
        guard: Callable[[], None] | None = None,
        meter: EmbedMeter | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._timeout_s = settings.embeddings_timeout_s
        self._guard = guard
        self._meter = meter or EmbedMeter()
        self._dimensions = endpoint.dimensions or KNOWN_DIMENSIONS.get(endpoint.model)
        self._ask_for_dimensions = False
        purposes: Sequence[Purpose] = ("document", "query")
        self._slots: Mapping[Purpose, asyncio.Semaphore] = {
            purpose: asyncio.Semaphore(_CONCURRENCY) for purpose in purposes
        }
        self._waiting: dict[Purpose, int] = dict.fromkeys(purposes, 0)
        self._log = get_logger()
        # a connection may take as long as an answer
        self._client = client_of(endpoint, timeout_s=self._timeout_s).with_options(timeout=self._timeout_s)

    @property
    def space(self) -> EmbeddingSpaceName:
        """Return the embedding space of all vectors of this embedder; known after `start`."""
        if self._dimensions is None:
            raise RuntimeError("the embedder has not been started")
        return EmbeddingSpaceName(PROVIDER, self._endpoint.model, self._dimensions)

    @property
    def base_url(self) -> str:
        """Return the base URL of the endpoint."""
        return self._endpoint.base_url

    @property
    def max_batch(self) -> int:
        """Return the maximum number of texts of one `embed` call."""
        return _QUEUE_TEXTS

    async def start(self) -> None:
        """Request one vector. An endpoint that does not answer fails the start only if its dimensions are unknown."""
        try:
            if self._dimensions is None:
                self._dimensions = len((await self._request(["dimensions"]))[0])
            await self.embed(["start"], purpose="query")
        except AppError as error:
            if self._dimensions is None:
                raise Unavailable(
                    "embedder_unavailable",
                    "The embedding endpoint could not be asked for the dimensions of its vectors"
                    f" ({error.code}): fix the endpoint, or set TURNKEEP_EMBEDDINGS_DIMENSIONS.",
                ) from error
            self._log.warning("embedder.unreachable", code=error.code)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def ready(self) -> bool:
        """Return whether the dimensions are known. This does not check that the endpoint answers."""
        return self._dimensions is not None

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Return unit vectors, float32 of shape (len(texts), dimensions).

        Raises RateLimited `embedder_rate_limited`, or Unavailable `embedder_overloaded`, `embedder_invalid`,
        `embedder_unavailable`. All may be retried later.
        """
        if self._guard is not None:
            self._guard()
        if len(texts) > self.max_batch:
            raise ValueError(f"embed takes at most {self.max_batch} texts, not {len(texts)}")
        if not texts:
            return np.empty((0, self.space.dimensions), dtype=np.float32)
        kind: Purpose = "query" if purpose == "query" else "document"
        with self._meter.measured(self.space, purpose, len(texts)):
            if self._waiting[kind] + len(texts) > _QUEUE_TEXTS:
                detail = "Too much text is waiting to be embedded; try again."
                raise Unavailable("embedder_overloaded", detail, retry_after_s=1)
            self._waiting[kind] += len(texts)
            try:
                return await self._embed_all(texts, kind)
            finally:
                self._waiting[kind] -= len(texts)

    def reads(self, text: str) -> bool:
        """Return that the model reads the script of any text: nothing else is known of it."""
        del text
        return True

    def split(self, text: str, *, max_pieces: int | None = None) -> list[str]:
        """Return pieces of about `embeddings_piece_tokens` tokens, cut between words; see `split_by_estimate`."""
        return split_by_estimate(text, max_tokens=self._settings.embeddings_piece_tokens, max_pieces=max_pieces)

    async def _embed_all(self, texts: Sequence[str], purpose: Purpose) -> Vectors:
        size = self._settings.embeddings_batch
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        tasks = [asyncio.create_task(self._embed_batch(batch, purpose)) for batch in batches]
        try:
            return np.concatenate(await asyncio.gather(*tasks))
        finally:  # one failure, or the caller's cancellation, ends the other tasks
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _embed_batch(self, texts: Sequence[str], purpose: Purpose) -> Vectors:
        async with self._slots[purpose]:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._try_until_it_works(texts)
            except TimeoutError as error:
                raise _ERRORS.unanswered() from error

    async def _try_until_it_works(self, texts: Sequence[str]) -> Vectors:
        attempt = 0
        while True:
            try:
                return self._checked(await self._request(texts))
            except _WrongWidthError as error:
                if self._ask_for_dimensions or self._endpoint.dimensions is None:
                    raise _ERRORS.invalid_answer() from error
                self._ask_for_dimensions = True  # the default width is wrong: request the configured one
            except (RateLimited, Unavailable) as error:
                retries, timeout_s = self._settings.embeddings_max_retries, self._timeout_s
                await wait_to_retry(error, attempt, max_retries=retries, timeout_s=timeout_s, event="embedder.retry")
                attempt += 1

    async def _request(self, texts: Sequence[str]) -> list[Vectors]:
        """Send one request, and return the vectors in the order of the texts. Their width is not checked yet."""
        import openai  # noqa: PLC0415 - see `client_of`

        # most endpoints refuse an empty text
        inputs = [text if text.strip() else "." for text in texts]
        dimensions = self._endpoint.dimensions if self._ask_for_dimensions else None
        try:
            answer = await self._client.embeddings.create(
                model=self._endpoint.model,
                input=inputs,
                dimensions=openai.omit if dimensions is None else dimensions,
            )
            return _in_order(answer, len(texts))
        except openai.APIStatusError as error:
            raise _ERRORS.refused(error) from error
        except openai.APIConnectionError as error:  # includes time-outs
            raise _ERRORS.unanswered() from error
        # an invalid embedding raises one of these, depending on the part that the client reads first
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise _ERRORS.invalid_answer() from error

    def _checked(self, vectors: Sequence[Vectors]) -> Vectors:
        if any(vector.shape != (self.space.dimensions,) for vector in vectors):
            raise _WrongWidthError
        matrix = np.stack(vectors).astype(np.float32)
        lengths = np.linalg.norm(matrix.astype(np.float64), axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and (lengths > 0).all()):
            raise _ERRORS.invalid_answer()
        return (matrix / lengths).astype(np.float32)


def _in_order(answer: "CreateEmbeddingResponse", count: int) -> list[Vectors]:
    """Return the vectors by their `index`. Raises ValueError unless there is one for each text."""
    vectors = {item.index: np.asarray(item.embedding, dtype=np.float32) for item in answer.data}
    if len(answer.data) != count or vectors.keys() != set(range(count)):
        raise ValueError("not one vector for each text")
    return [vectors[number] for number in range(count)]
