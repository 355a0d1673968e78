"""Facts over REST: list, assert, read, correct, retract, undo; extract from a conversation."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from app.core.paging import Page
from app.core.times import TimeIn
from app.core.validation.ids import ConversationIdIn, IdIn
from app.memory.schemas import (
    Extraction,
    Fact,
    FactCreate,
    FactListing,
    FactResult,
    FactSearch,
    FactsExtract,
    FactUpdate,
    Tier,
)
from app.routers.http.dependencies import ConversationPath, NewestFirst, QueryText, Reader, Services, Writer
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1", tags=["facts"], route_class=StrictJsonRoute)


FactPath = Annotated[IdIn, Path(description="The fact's id: a ULID or a UUID.")]


async def _search(
    subject: Annotated[
        QueryText | None, Query(description="Facts about this subject, in any of its spellings.")
    ] = None,
    predicate: Annotated[
        QueryText | None, Query(description="Facts with this predicate, in any of its spellings.")
    ] = None,
    owner: QueryText | None = None,
    project: Annotated[QueryText | None, Query(description="Facts that are known in this project.")] = None,
    conversation_id: Annotated[
        ConversationIdIn | None, Query(description="Facts with evidence from this conversation.")
    ] = None,
    tier: Tier | None = None,
    as_of: Annotated[TimeIn | None, Query(description="Facts that were valid at this time.")] = None,
    known_at: Annotated[
        TimeIn | None, Query(description="Facts that were recorded by this time, as they were then.")
    ] = None,
    *,
    include_retracted: Annotated[
        bool, Query(description="Also retracted facts, and those that an undo removed.")
    ] = False,
) -> FactSearch:
    return FactSearch(
        subject=subject,
        predicate=predicate,
        owner=owner,
        project=project,
        conversation_id=conversation_id,
        tier=tier,
        as_of=as_of,
        known_at=known_at,
        include_retracted=include_retracted,
    )


@router.get("/facts")
async def list_facts(
    caller: Reader, services: Services, asked: NewestFirst, where: Annotated[FactSearch, Depends(_search)]
) -> Page[Fact]:
    """List facts, the last recorded first, including ended ones. `as_of` lists the facts that were true at a time."""
    return await services.facts.list_page(
        caller, where=where, newest_first=asked.order == "desc", limit=asked.limit, cursor=asked.cursor
    )


@router.post("/facts/search")
async def search_facts(body: FactListing, caller: Reader, services: Services) -> Page[Fact]:
    """List facts like `GET /v1/facts`, with the filters in the body: names of persons stay out of the address."""
    return await services.facts.list_page(
        caller, where=body.filters(), newest_first=body.order == "desc", limit=body.limit, cursor=body.cursor
    )


@router.post(
    "/facts",
    status_code=201,
    responses={200: {"model": FactResult, "description": "It was stored before, and has more evidence now."}}
    | problem_responses(404),
)
async def create_fact(
    body: FactCreate, caller: Writer, services: Services, idempotency_key: IdempotencyHeader, response: Response
) -> FactResult:
    """Assert a fact. A fact that is already stored gains evidence (200 instead of 201)."""
    return respond(response, await services.facts.create(caller, body=body, idempotency_key=idempotency_key))


@router.get("/facts/{fact_id}")
async def get_fact(fact_id: FactPath, caller: Reader, services: Services) -> Fact:
    """Read one fact, retracted or not."""
    return await services.facts.get(caller, fact_id)


@router.patch("/facts/{fact_id}", responses=problem_responses(409))
async def update_fact(fact_id: FactPath, body: FactUpdate, caller: Writer, services: Services) -> FactResult:
    """Correct a fact: it is retracted and replaced by another fact with an id of its own."""
    return await services.facts.update(caller, fact_id, body=body)


@router.delete("/facts/{fact_id}")
async def retract_fact(fact_id: FactPath, caller: Writer, services: Services) -> FactResult:
    """Retract a fact that was never true. Its row stays for history and undo; a repeat changes nothing."""
    return await services.facts.retract(caller, fact_id)


@router.post("/facts/{fact_id}/undo", responses=problem_responses(409))
async def undo_fact(fact_id: FactPath, caller: Writer, services: Services) -> FactResult:
    """Undo the last change of a fact: an assertion, an extraction, a correction, a retraction.

    A fact that this change had added stays as a retracted one, with `undone`. It can be asserted again. An undo cannot
    be undone: 409 `nothing_to_undo`.
    """
    return await services.facts.undo(caller, fact_id)


@router.post("/conversations/{conversation_id}/facts/extract", responses=problem_responses(409, 429, 502))
async def extract_facts(
    conversation_id: ConversationPath, body: FactsExtract, caller: Writer, services: Services
) -> Extraction:
    """Extract facts now from the turns that were not processed yet, through a named one or all of them."""
    return await services.facts.extract(caller, conversation_id, request=body)
