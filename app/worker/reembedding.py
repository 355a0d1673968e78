"""The steps of `turnkeep reembed`, which moves an installation to another embedding space.

Servers keep running meanwhile. The command fills the space itself, with the same jobs as every worker. So it needs no
running worker, and may be stopped and run again at any time.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

from app.container import Container, open_container
from app.conversations.schemas.conversations import content_text
from app.conversations.schemas.listing import ConversationFilter
from app.core.errors import Conflict
from app.core.ids import ConversationId, TenantId, parse_id
from app.index.schemas import DROP_JOB, EmbeddingSpace, SpaceAdd, SpaceState, SpaceSwitch
from app.index.service import EmbeddingSpaceRuntime
from app.recall.schemas import SpaceComparison, SpaceComparisonResult
from app.settings import Settings
from app.tenancy.schemas import Scope, job_caller
from app.worker.handlers import job_handlers, make_worker, space_job_handlers
from app.worker.runner import working

_POLL_S = 0.5
_SAMPLED_CONVERSATIONS = 20
_SAMPLED_TURNS = 10
_MAX_QUERIES = 50
_QUERY_CHARACTERS = 500

Progress = Callable[[EmbeddingSpace], None]


class Reembedding:
    """The steps of a move. `tenant_id` is the tenant whose turns are compared."""

    def __init__(self, container: Container, tenant_id: TenantId) -> None:
        self._container = container
        self._caller = replace(job_caller(tenant_id), scopes=frozenset(Scope))

    async def spaces(self) -> list[EmbeddingSpace]:
        """Return all spaces, newest first."""
        return (await self._container.spaces.list_spaces(self._caller)).data

    async def fill(self, *, progress: Progress) -> EmbeddingSpace:
        """Add the space of the last configured embedder and fill it completely.

        Raises Conflict `space_not_configured` if the installation already searches this space, and the errors of the
        embedder.
        """
        runtime = self._wanted()
        name = runtime.embedder.space if runtime.embedder is not None else None
        body = SpaceAdd() if name is None else SpaceAdd(**asdict(name))
        space = await self._container.spaces.add(self._caller, body=body)
        kinds = {kind: how for kind, how in space_job_handlers(self._container, runtime).items() if how.every_s is None}
        covered = -1
        async with working(make_worker(self._container, only=kinds)):
            while True:
                lacking = await self._container.index.spaces.plan(runtime)
                space = await self._until_done(space.id, progress)
                # texts that a model refuses have no vectors
                if not lacking or space.covered == covered:
                    break
                covered = space.covered
        await runtime.ann.index_due()
        return await self._container.spaces.space(self._caller, space.id)

    def _wanted(self) -> EmbeddingSpaceRuntime:
        spaces = self._container.index.spaces
        runtime = list(spaces.runtimes.values())[-1]
        if runtime.embedder is None or runtime.space.id == (spaces.chosen or spaces.current.space.id):
            raise Conflict(
                "space_not_configured",
                "The installation searches the embedding space of these settings already: name the new one by"
                " TURNKEEP_NEXT_EMBEDDER and what belongs to it, here and where the servers run.",
            )
        return runtime

    async def _until_done(self, space_id: int, progress: Progress) -> EmbeddingSpace:
        while True:
            space = await self._container.spaces.space(self._caller, space_id)
            progress(space)
            if not space.jobs_waiting:
                return space
            await asyncio.sleep(_POLL_S)

    async def compare(
        self, space_id: int, *, queries: Sequence[str], k: int
    ) -> tuple[list[str], SpaceComparisonResult | None]:
        """Compare a space with the searched one, by these queries or by turns of users. None if there are none."""
        asked = list(queries)[:_MAX_QUERIES] or await self._sample()
        if not asked:
            return [], None
        request = SpaceComparison(queries=asked, k=k)
        return asked, await self._container.recall_service.compare(self._caller, space_id, request=request)

    async def _sample(self) -> list[str]:
        """Return the newest turns of users in the tenant's latest conversations, as sample queries."""
        conversations = self._container.conversations
        page = await conversations.list_conversations(
            self._caller, where=ConversationFilter(), order="desc", limit=_SAMPLED_CONVERSATIONS, cursor=None
        )
        texts: dict[str, None] = {}
        for conversation in page.data:
            turns = await conversations.recent(
                self._caller, ConversationId(parse_id(conversation.id)), limit=_SAMPLED_TURNS
            )
            said = [content_text(turn.content) for turn in turns if turn.role == "user"]
            texts |= dict.fromkeys(text[:_QUERY_CHARACTERS] for text in said[-2:] if text[:_QUERY_CHARACTERS].strip())
        return list(texts)[:_MAX_QUERIES]

    async def switch(self, space_id: int, *, force: bool) -> EmbeddingSpace:
        """Make a space the searched one from now on."""
        return await self._container.spaces.switch(self._caller, space_id, body=SpaceSwitch(force=force))

    async def roll_back(self, *, force: bool) -> EmbeddingSpace:
        """Make the previous space the searched one again; with `force` also if it is incomplete."""
        previous = next((space for space in await self.spaces() if space.previous), None)
        if force and previous is not None:
            return await self.switch(previous.id, force=True)
        return await self._container.spaces.roll_back(self._caller)

    async def drop(self, space_id: int, *, progress: Progress) -> EmbeddingSpace:
        """Delete a space's vectors and its vector index, and wait until they are deleted."""
        space = await self._container.spaces.drop(self._caller, space_id)
        only = {DROP_JOB: job_handlers(self._container)[DROP_JOB]}
        async with working(make_worker(self._container, only=only)):
            while space.state is SpaceState.DROPPING:
                await asyncio.sleep(_POLL_S)
                space = await self._container.spaces.space(self._caller, space_id)
                progress(space)
        return space


@asynccontextmanager
async def reembedding(settings: Settings, tenant_id: TenantId) -> AsyncGenerator[Reembedding]:
    """Yield the steps for the installation of these settings, without migrating its schema."""
    async with open_container(settings, migrate=False) as container:
        yield Reembedding(container, tenant_id)
