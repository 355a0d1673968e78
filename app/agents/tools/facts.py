"""The tools for facts: list them, assert one."""

from collections.abc import Awaitable

from app.agents.tools.conversations import fit_page, found
from app.agents.tools.schemas import AssertFact, ListFacts
from app.agents.tools.tool import ADDS, READS, Group, Tool, ToolServices, tool
from app.core.ids import ConversationId
from app.core.paging import Page
from app.memory.schemas import Fact, FactResult
from app.tenancy.schemas import Caller


def fact_tools() -> tuple[Tool, ...]:
    """Return the tools."""
    return (
        tool(
            "list_facts",
            ListFacts,
            Page[Fact],
            _list_facts,
            title="List facts",
            description=(
                "List what is known as facts: a subject, a predicate and an object each, with the time in which it"
                " holds and the turns that say it. The last recorded comes first. `as_of` asks what was so at a time;"
                " without it facts that have ended are listed too, with `valid_to`."
            ),
            group=Group.MEMORY,
            hints=READS,
        ),
        tool(
            "assert_fact",
            AssertFact,
            FactResult,
            _assert_fact,
            title="Assert a fact",
            description=(
                "Record one fact: `subject` (who or what), `predicate` (a short name such as `lives_in`) and"
                " `object`. A fact that is known already gains evidence. It ends an earlier fact where only one can be"
                " true at a time, or with `replaces`. Name the conversation or the turns that say so, if there are"
                " any."
            ),
            group=Group.MEMORY,
            hints=ADDS,
        ),
    )


async def _conversation(services: ToolServices, caller: Caller, body: ListFacts | AssertFact) -> ConversationId | None:
    if body.conversation_id is None and body.external_id is None:
        return None
    return await found(services, caller, body)


async def _list_facts(services: ToolServices, caller: Caller, body: ListFacts) -> Page[Fact]:
    where = body.search(await _conversation(services, caller, body))

    def read(limit: int) -> Awaitable[Page[Fact]]:
        return services.facts.list_page(caller, where=where, newest_first=True, limit=limit, cursor=body.cursor)

    return await fit_page(read, body.limit, max_bytes=services.max_answer_bytes)


async def _assert_fact(services: ToolServices, caller: Caller, body: AssertFact) -> FactResult:
    asserted = body.model_copy(update={"conversation_id": await _conversation(services, caller, body)})
    return (await services.facts.create(caller, body=asserted)).value
