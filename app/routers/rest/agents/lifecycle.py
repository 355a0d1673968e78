"""The turn lifecycle over REST: calls around each turn of an agent's model, and maintenance of its sessions."""

from fastapi import APIRouter

from app.agents.lifecycle.schemas import (
    PRODUCED_ITEMS,
    AfterTurn,
    BeforeTurn,
    Maintained,
    RunTurn,
    SessionRequest,
    Tree,
    TreeRequest,
    TurnContext,
    TurnDone,
    TurnPrepared,
)
from app.audit.schemas import Action
from app.routers.http.dependencies import AgentReader, AgentWriter, Reader, Services, Writer
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute


class _ItemsRoute(StrictJsonRoute):
    """A route whose body may have items. They are checked when they are read."""

    produced_members = frozenset(PRODUCED_ITEMS)


router = APIRouter(prefix="/v1/lifecycle", tags=["lifecycle"], route_class=_ItemsRoute)


@router.post("/before-turn", responses=problem_responses(404, 409))
async def before_turn(body: BeforeTurn, caller: AgentReader, services: Services) -> TurnContext:
    """Return the model's input for the next turn of a session, within `max_input_tok`; nothing is stored."""
    prepared = await services.lifecycle.before_turn(caller, request=body)
    services.audit.record_read(caller, Action.CONTEXT_BUILD, counts={"messages": len(prepared.input_items)})
    return prepared


@router.post("/after-turn", responses=problem_responses(404, 409))
async def after_turn(body: AfterTurn, caller: Writer, services: Services) -> TurnDone:
    """Store a turn of a session, which is created at first use. A repeat changes nothing; the first body is kept."""
    return await services.lifecycle.after_turn(caller, request=body)


@router.post("/run-turn", operation_id="run_turn", responses=problem_responses(404, 409))
async def run_turn(body: RunTurn, caller: AgentWriter, services: Services) -> TurnPrepared | TurnDone:
    """Prepare a turn: store its input and return its context. With `operation_token`, store its output."""
    return await services.lifecycle.run_turn(caller, request=body)


@router.post("/maintenance", responses=problem_responses(404, 409, 429, 502))
async def run_maintenance(body: SessionRequest, caller: Writer, services: Services) -> Maintained:
    """Summarise, erase and expire what is due in a session now. May be interrupted and sent again."""
    return await services.lifecycle.maintenance(caller, request=body)


@router.post("/tree", responses=problem_responses(404))
async def list_memory_tree(body: TreeRequest, caller: Reader, services: Services) -> Tree:
    """List the memory of a session as a tree: days, context, facts by tier, and metadata."""
    return await services.lifecycle.tree(caller, request=body)
