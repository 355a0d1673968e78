"""The embedders of a process by its settings: the first, and a second one during a move to another space.

Only this module and the container choose concrete providers. If the second embedder cannot start, the process starts
without it and logs a warning.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

from app.core.database.servers import Server
from app.core.database.transactions import Database
from app.core.errors import AppError
from app.core.telemetry import get_logger
from app.index.service import AnnMaintenance, AnnOptions, ensure_space
from app.providers.local import LocalEmbedder
from app.providers.openai import OPENAI_ROOT, OpenAIEmbedder, RemoteOptions
from app.providers.schemas import Embedder
from app.settings import Settings


async def open_embedders(
    settings: Settings, *, guard: Callable[[], None], stack: AsyncExitStack
) -> list[Embedder | None]:
    """Return the started embedders of the settings; None as the first if it is disabled. `stack` closes them."""
    first: Embedder | None = None
    if settings.embedder != "none":
        first = await _start(_embedder(settings, next_one=False, guard=guard), stack)
    if settings.next_embedder is None:
        return [first]
    try:
        return [first, await _start(_embedder(settings, next_one=True, guard=guard), stack)]
    except AppError as error:
        get_logger().warning("embedder.next_unavailable", code=error.code)
        return [first]


async def _start(embedder: LocalEmbedder | OpenAIEmbedder, stack: AsyncExitStack) -> Embedder:
    stack.push_async_callback(embedder.close)
    await embedder.start()
    return embedder


def _embedder(settings: Settings, *, next_one: bool, guard: Callable[[], None]) -> LocalEmbedder | OpenAIEmbedder:
    if (settings.next_embedder if next_one else settings.embedder) == "local":
        return LocalEmbedder(threads=settings.embedder_threads, guard=guard)
    return OpenAIEmbedder(remote_options(settings, next_one=next_one), guard=guard)


def remote_options(settings: Settings, *, next_one: bool) -> RemoteOptions:
    """Return the options of the first or the second endpoint; both share timeouts and limits."""
    root = settings.next_embeddings_base_url if next_one else settings.embeddings_base_url
    return RemoteOptions(
        base_url=root or OPENAI_ROOT,
        api_key=settings.key_of_next if next_one else settings.key_of_embeddings,
        model=settings.next_embeddings_model if next_one else settings.embeddings_model,
        dimensions=settings.next_embeddings_dimensions if next_one else settings.embeddings_dimensions,
        timeout_s=settings.embeddings_timeout_s,
        max_retries=settings.embeddings_max_retries,
        concurrency=settings.embeddings_concurrency,
        batch=settings.embeddings_batch,
        piece_tokens=settings.embeddings_piece_tokens,
    )


def base_url(embedder: Embedder | None) -> str | None:
    """Return the URL of an embedder; None for one in this process."""
    return embedder.base_url if isinstance(embedder, OpenAIEmbedder) else None


async def open_ann_maintenance(
    settings: Settings, ops: Database, server: Server, embedder: Embedder | None
) -> AnnMaintenance:
    """Return the vector index of an embedder's space, whose row is created at first use."""
    space = await ensure_space(ops, embedder)
    return AnnMaintenance(
        ops,
        space=space,
        options=AnnOptions(
            exact_scope_entries=settings.exact_scope_entries,
            text_candidates=settings.text_candidates,
            fresh_vectors=settings.tier_fresh_vectors,
        ),
        make_index=lambda: server.ensure_vector_index(space_id=space.id, dimensions=space.dimensions),
    )
