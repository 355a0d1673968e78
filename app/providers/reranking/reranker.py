"""A reranker behind HTTP: a model that reads a query together with each text, and says how well the text answers it.

Two forms of `POST …/rerank` are understood. Cohere, Jina, Infinity and vLLM take `documents` and answer
`{"results": [{"index", "relevance_score"}]}`. TEI takes `texts`, a few at once, and answers `[{"index", "score"}]`. The
form is learnt from the first answer. There is one error, `reranker_failed`. No text, neither of the request nor of the
answer, is logged or part of an error.
"""

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from time import perf_counter
from typing import Final, cast

import httpx2
from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector
from pydantic import JsonValue

from app.core.errors import AppError, Unavailable
from app.core.ids import TenantId
from app.core.limits import TenantLimiter
from app.core.telemetry import error_type, get_logger
from app.core.tracing.call_record import Stage
from app.core.tracing.export import trace_http_client
from app.core.tracing.stages import MeasuredStage
from app.settings.models import RerankerSettings

RERANKER_FAILED: Final = "reranker_failed"

_MAX_CHARACTERS: Final = 4000
"""Of a query, and of each text: about a thousand tokens, more than most models read of both together."""
_CONCURRENCY: Final = 8
"""Calls at once; a tenant has half of them."""
_TEI_BATCH: Final = 32
"""Texts that TEI takes at once by default."""
_MAX_ANSWER_BYTES: Final = 4 * 2**20
"""Some endpoints repeat the texts in their answers."""
_OK: Final = 200
_OTHER_FORM: Final = frozenset({400, 422})
_DURATION_BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _RerankRefusedError(Exception):
    """The endpoint answered with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Reranker:
    """An endpoint as a reranker. `guard` is called at the beginning of every call; it raises in a transaction."""

    def __init__(self, url: str, *, settings: RerankerSettings, guard: Callable[[], None]) -> None:
        self._url = url
        self._settings = settings
        self._guard = guard
        self._slots = TenantLimiter(
            _CONCURRENCY // 2, total=_CONCURRENCY, wait_s=settings.reranker_timeout_s, detail="The reranker is busy."
        )
        self._takes_texts: bool | None = None
        """Whether the endpoint has TEI's form; None until it has answered."""
        key = settings.reranker_api_key
        self._client = httpx2.AsyncClient(
            headers={} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
            timeout=settings.reranker_timeout_s,
        )
        trace_http_client(self._client)
        self._calls = Counter(
            "turnkeep_rerank_calls",
            "Calls of the reranker by status: ok, failed or cancelled.",
            ["status"],
            registry=None,
        )
        self._duration = Histogram(
            "turnkeep_rerank_duration_seconds",
            "Time of calls of the reranker, with the wait for a connection.",
            registry=None,
            buckets=_DURATION_BUCKETS_S,
        )
        self._log = get_logger()

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """Return the metrics, for a registry."""
        return self._calls, self._duration

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def scores(self, tenant_id: TenantId, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of each text: the higher, the better it answers the query.

        Raises Unavailable `reranker_failed`, at the latest after the configured time; `overloaded` if too many calls of
        the tenant wait.
        """
        self._guard()
        query, texts = query[:_MAX_CHARACTERS], [text[:_MAX_CHARACTERS] for text in texts]
        with self._measured(len(texts)):
            try:
                async with asyncio.timeout(self._settings.reranker_timeout_s), self._slots.hold(tenant_id):
                    return await self._ask(query, texts)
            except _RerankRefusedError as error:
                self._log.warning("reranker.refused", status=error.status)
                raise _failed() from error
            except (TimeoutError, httpx2.HTTPError, ValueError, OverflowError, RecursionError) as error:
                self._log.warning("reranker.failed", error_type=error_type(error))
                raise _failed() from error

    async def _ask(self, query: str, texts: Sequence[str]) -> list[float]:
        if not self._takes_texts:
            body: dict[str, object] = {"query": query, "documents": texts, "top_n": len(texts)}
            if self._settings.reranker_model is not None:
                body["model"] = self._settings.reranker_model
            try:
                scores = _read_scores(await self._post(body), len(texts))
            except _RerankRefusedError as error:
                if self._takes_texts is False or error.status not in _OTHER_FORM:
                    raise
            else:
                self._takes_texts = False
                return scores
        scores = list[float]()
        for start in range(0, len(texts), _TEI_BATCH):
            batch = texts[start : start + _TEI_BATCH]
            answer = await self._post({"query": query, "texts": batch, "truncate": True})
            scores += _read_scores(answer, len(batch))
        self._takes_texts = True
        return scores

    async def _post(self, body: Mapping[str, object]) -> JsonValue:
        async with self._client.stream("POST", self._url, json=body) as response:
            if response.status_code != _OK:
                raise _RerankRefusedError(response.status_code)
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _MAX_ANSWER_BYTES:
                    raise ValueError("the answer is too large")
        return cast("JsonValue", json.loads(content))

    @contextmanager
    def _measured(self, texts: int) -> Generator[None]:
        status, started = "cancelled", perf_counter()
        try:
            with MeasuredStage(Stage.RERANK, texts=texts):
                yield
            status = "ok"
        except AppError:
            status = "failed"
            raise
        finally:
            self._calls.labels(status).inc()
            self._duration.observe(perf_counter() - started)


def _failed() -> Unavailable:
    return Unavailable(RERANKER_FAILED, "The reranker did not answer as it should.")


def _read_scores(answer: JsonValue, count: int) -> list[float]:
    """Return the scores in the order of the texts. Raises ValueError unless there is one for each text."""
    results = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(results, list) or len(results) != count:
        raise ValueError("not one result for each text")
    scores: dict[int, float] = {}
    for result in results:
        if not isinstance(result, dict):
            raise ValueError("a result is no object")  # noqa: TRY004 - of the answer, not of an argument
        index, score = result.get("index"), result.get("relevance_score", result.get("score"))
        if not isinstance(index, int) or not isinstance(score, int | float) or not isfinite(score):
            raise ValueError("a result without index or score")
        scores[index] = float(score)
    if scores.keys() != set(range(count)):
        raise ValueError("not one result for each text")
    return [scores[index] for index in range(count)]
