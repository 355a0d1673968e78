"""Turns over REST: append, read, revise, erase."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from app.conversations.schemas.append import Append
from app.conversations.schemas.conversations import AppendResult, ErasedTurns, Revision, RevisionResult, Turn
from app.conversations.schemas.history import HistoryPage, HistoryQuery, HistorySearch, ListedStatus
from app.core.paging import Order
from app.routers.http.dependencies import (
    ConversationPath,
    ConversationReader,
    ConversationWriter,
    Cursor,
    NamedTurns,
    QueryCounter,
    QueryText,
    Services,
    TurnPath,
    Writer,
)
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.routing.strict_route import TurnsRoute

ERASED_HEADER: Final = "X-Turnkeep-Erased"
router = APIRouter(prefix="/v1/conversations/{conversation_id}/turns", tags=["turns"], route_class=TurnsRoute)

OnlyThis = Annotated[bool, Query(description="Erase the named turns only, not their other revisions.")]


class HistoryParameters(BaseModel):
    """Filters and paging of a history."""

    order: Annotated[
        Order | None,
        Query(
            description="`asc` starts at the first turn, `desc` at the newest. Without it a page is in chronological"
            " order: the newest turns, or those just before `before`, or those just after `after`."
        ),
    ] = None
    after: Annotated[QueryCounter, Query(description="Only turns after this position.")] = None
    before: Annotated[QueryCounter, Query(description="Only turns before this position.")] = None
    since_rev: Annotated[
        QueryCounter,
        Query(
            description="Only turns that changed after this `rev`, in the order of their `rev`: new, superseded and"
            " erased ones. Give the `rev` of an earlier page."
        ),
    ] = None
    status: Annotated[
        ListedStatus, Query(description="`aborted` lists aborted turns, in the order in which they were opened.")
    ] = "committed"
    actors: Annotated[list[QueryText] | None, Query(max_length=200, description="Only turns of these actors.")] = None
    limit: Annotated[int, Query(ge=1, le=200)] = 50
    cursor: Cursor = None
    include_superseded: Annotated[bool, Query(description="Superseded turns too, by position, then seq.")] = False
    include_summaries: Annotated[bool, Query(description="Also summaries that cover turns of the page.")] = False


@router.post(
    "",
    status_code=201,
    responses={200: {"model": AppendResult, "description": "Every turn was stored already; nothing was stored now."}},
)
async def append_turns(
    conversation_id: ConversationPath,
    body: Append,
    caller: ConversationWriter,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> AppendResult:
    """Append 1 to 500 turns, all or none. When this returns, they are durable and recall finds them."""
    result = await services.conversations.append(
        caller,
        conversation_id,
        turns=body.turns,
        expected_seq=body.expected_seq,
        vectors=body.index,
        idempotency_key=idempotency_key,
        is_import=body.is_import,
        sanitised=body.sanitised,
    )
    return respond(response, result)


@router.get("")
async def list_turns(
    conversation_id: ConversationPath,
    caller: ConversationReader,
    services: Services,
    wanted: Annotated[HistoryParameters, Query()],
) -> HistoryPage:
    """Read the history: the newest live turns in chronological order; `next_cursor` is the page before them.

    With `after`, `since_rev` or `order=asc` it is the page after them. Erased turns are tombstones, with `erased_at`.
    `rev` is the conversation's rev at the first page: send it as `since_rev` to read later changes.
    """
    return await services.conversations.history(caller, conversation_id, query=HistoryQuery(**dict(wanted)))


@router.post("/search")
async def search_turns(
    conversation_id: ConversationPath, body: HistorySearch, caller: ConversationReader, services: Services
) -> HistoryPage:
    """Read the history like `GET …/turns`, with the filters in the body: names of actors stay out of the address."""
    return await services.conversations.history(caller, conversation_id, query=HistoryQuery(**dict(body)))


@router.delete("")
async def erase_turns(
    conversation_id: ConversationPath,
    caller: Writer,
    services: Services,
    turn_ids: NamedTurns,
    *,
    only_this: OnlyThis = False,
) -> ErasedTurns:
    """Erase the content of 1 to 500 turns, all or none, with everything derived from it. Tombstones stay.

    All earlier and later revisions of these turns are erased too, unless `only_this`.
    """
    return await services.governance.erase_turns(caller, conversation_id, turn_ids=turn_ids, only_this=only_this)


@router.get("/{turn_id}")
async def get_turn(
    conversation_id: ConversationPath, turn_id: TurnPath, caller: ConversationReader, services: Services
) -> Turn:
    """Read one turn."""
    return await services.conversations.turn(caller, conversation_id, turn_id=turn_id)


@router.delete("/{turn_id}", status_code=204)
async def erase_turn(
    conversation_id: ConversationPath,
    turn_id: TurnPath,
    caller: Writer,
    services: Services,
    response: Response,
    *,
    only_this: OnlyThis = False,
) -> None:
    """Erase the content of a turn, with everything derived from it. A tombstone stays in its place.

    All earlier and later revisions of the turn are erased too, unless `only_this`. A repeat changes nothing: the header
    `X-Turnkeep-Erased` is the number of turns, revisions included, that this request erased.
    """
    done = await services.governance.erase_turns(caller, conversation_id, turn_ids=[turn_id], only_this=only_this)
    response.headers[ERASED_HEADER] = str(len(done.erased))


@router.post(
    "/{turn_id}/revisions",
    status_code=201,
    responses={200: {"model": RevisionResult, "description": "This revision was stored already."}},
)
async def revise_turn(
    conversation_id: ConversationPath,
    turn_id: TurnPath,
    body: Revision,
    caller: Writer,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> RevisionResult:
    """Edit a turn or generate it again: a new turn takes its position, the old one is superseded and stays stored.

    With `truncate_after` every live turn after it is superseded too.
    """
    result = await services.conversations.revise(
        caller, conversation_id, turn_id=turn_id, body=body, idempotency_key=idempotency_key
    )
    return respond(response, result)
