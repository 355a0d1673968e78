"""`ask_agent` over REST."""

from fastapi import APIRouter, Response

from app.agents.tools.schemas import AgentAnswer, AskAgent
from app.audit.schemas import Action
from app.routers.http.dependencies import AgentWriter, Services
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/agent", tags=["agent"], route_class=StrictJsonRoute)


@router.post("/ask", responses=problem_responses(404, 429, 502))
async def ask_agent(
    body: AskAgent, caller: AgentWriter, services: Services, idempotency_key: IdempotencyHeader, response: Response
) -> AgentAnswer:
    """Ask the agent, which answers from earlier turns, conversations and memories with its granted tools.

    Query and answer are stored in the named conversation, or in a new one. The key needs the scopes read and write.
    """
    answer = await services.ask_service.ask(caller, body=body, idempotency_key=idempotency_key)
    services.audit.record_read(caller, Action.AGENT_ASK)
    return respond(response, answer)
