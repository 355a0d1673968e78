"""The embedders of a process by its settings: the first, and a second one during a move to another space.

Only this module and the container choose concrete providers. If the second embedder cannot start, the process starts
without it and logs a warning.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from app.core.database.servers import Server
from app.core.database.transactions import Database
from app.core.errors import AppError
from app.core.jobs import JobQueue
from app.core.telemetry import get_logger
from app.index.backfill.vector_backfill import VectorBackfill
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.spaces.runtime import EmbeddingSpaceRegistry, EmbeddingSpaceRuntime, ensure_space
from app.providers.embed_meter import EmbedMeter
from app.providers.local.embedder import LOCAL_MODELS, LocalEmbedder
from app.providers.remote.openai import OpenAIEmbedder
from app.providers.schemas import Embedder
from app.settings.memory import IndexSettings
from app.settings.models import EmbeddingSettings
from app.tenancy.service import Tenancy


async def open_embedders(
    settings: EmbeddingSettings, *, guard: Callable[[], None], stack: AsyncExitStack, meter: EmbedMeter
) -> list[Embedder | None]:
    """Return the started embedders of the settings; None as the first if it is disabled. `stack` closes them."""
    first: Embedder | None = None
    if settings.embedder != "none":
        first = await _start(_embedder(settings, next_one=False, guard=guard, meter=meter), stack)
    if settings.next_embedder is None:
        return [first]
    try:
        return [first, await _start(_embedder(settings, next_one=True, guard=guard, meter=meter), stack)]
    except AppError as error:
        get_logger().warning("embedder.next_unavailable", code=error.code)
        return [first]


async def _start(embedder: LocalEmbedder | OpenAIEmbedder, stack: AsyncExitStack) -> Embedder:
    stack.push_async_callback(embedder.close)
    await embedder.start()
    return embedder


def _embedder(
    settings: EmbeddingSettings, *, next_one: bool, guard: Callable[[], None], meter: EmbedMeter
) -> LocalEmbedder | OpenAIEmbedder:
    name = settings.next_embedder if next_one else settings.embedder
    if (kind := LOCAL_MODELS.get(name or "")) is not None:
        return LocalEmbedder(kind(), threads=settings.embedder_threads, guard=guard, meter=meter)
    endpoint = settings.next_endpoint if next_one else settings.endpoint
    return OpenAIEmbedder(endpoint, settings=settings, guard=guard, meter=meter)


def base_url(embedder: Embedder | None) -> str | None:
    """Return the URL of an embedder; None for one in this process."""
    return embedder.base_url if isinstance(embedder, OpenAIEmbedder) else None


async def open_ann_maintenance(
    settings: IndexSettings, ops: Database, server: Server, embedder: Embedder | None
) -> AnnMaintenance:
    """Return the vector index of an embedder's space, whose row is created at first use."""
    space = await ensure_space(ops, embedder)
    return AnnMaintenance(
        ops,
        space=space,
        settings=settings,
        make_index=lambda: server.ensure_vector_index(space_id=space.id, dimensions=space.dimensions),
    )


def build_spaces(
    ops: Database, runtimes: Sequence[tuple[Embedder | None, AnnMaintenance]], jobs: JobQueue, tenancy: Tenancy
) -> EmbeddingSpaceRegistry:
    """Return the registry of the embedding spaces of a process, each with its embedder and its maintenance."""
    by_space = {
        # of two runtimes for the same space, keep the first
        ann.space.id: EmbeddingSpaceRuntime(
            embedder,
            ann,
            VectorBackfill(ops, embedder, space=ann.space, jobs=jobs, tenancy=tenancy),
        )
        for embedder, ann in reversed(runtimes)
    }
    return EmbeddingSpaceRegistry(ops, list(reversed(by_space.values())))
