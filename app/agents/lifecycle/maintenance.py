"""Runs the maintenance of a session on request: the work that jobs do in time, with counts.

Each step may be interrupted and repeated: it looks for the remaining work first.
"""

from datetime import UTC, datetime, timedelta

from app.agents.lifecycle.schemas import MaintenanceCounts, SessionRequest
from app.context.schemas import CompactionRequest
from app.context.service import Compactor
from app.conversations.schemas.sessions import SessionName
from app.conversations.schemas.summaries import Summary, SummaryKind
from app.conversations.service import Sessions, Summaries
from app.core.ids import ConversationId
from app.governance.service import Governance
from app.memory.service import FactService
from app.settings.memory import LifecycleSettings
from app.tenancy.schemas import Caller, Scope

_FEWEST = 2


class Maintenance:
    """Compaction, retention, expiry of facts, and summaries that replace highlights."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        summaries: Summaries,
        compactor: Compactor,
        governance: Governance,
        facts: FactService,
        settings: LifecycleSettings,
    ) -> None:
        self._sessions = sessions
        self._summaries = summaries
        self._compactor = compactor
        self._governance = governance
        self._facts = facts
        self._recent_items = settings.recent_context_items
        self._min_age = timedelta(hours=settings.compaction_min_age_hours)

    async def run(self, caller: Caller, *, request: SessionRequest) -> MaintenanceCounts:
        """Run all due work of a session. Raises NotFound; Busy if the session is locked; the errors of the model."""
        caller.require(Scope.WRITE)
        session = await self._sessions.wait_until_idle(caller, name=SessionName(request.project, request.session_id))
        expired = await self._facts.expire(caller, owner=session.owner, conversation_id=session.conversation_id)
        created, refreshed = await self._compact(caller, session.conversation_id)
        erased = await self._governance.retain(caller, session.conversation_id)
        return MaintenanceCounts(summaries=created, refreshed=refreshed, turns_erased=erased, facts_expired=expired)

    async def compact_early(self, caller: Caller, conversation_id: ConversationId) -> int:
        """Summarise a session with too large contexts; half of the turns that a context reads stay."""
        request = CompactionRequest(trigger_turns=self.early_turns)
        return len((await self._compactor.compact(caller, conversation_id, request=request)).summaries)

    @property
    def early_turns(self) -> int:
        """Number of turns that an early compaction leaves at most."""
        return max(_FEWEST, self._recent_items // 2)

    async def _compact(self, caller: Caller, conversation_id: ConversationId) -> tuple[int, int]:
        """Summarise due and old turns; return the numbers of summaries and of replaced highlights."""
        before = await self._summaries.list_valid(caller, conversation_id)
        highlighted = {summary.to_position for summary in before.summaries if summary.kind is SummaryKind.HIGHLIGHTS}
        done = await self._compactor.compact(caller, conversation_id, request=CompactionRequest())
        created: list[Summary] = [*done.summaries]
        old = await self._sessions.newest_before(
            caller, conversation_id, moment=datetime.now(UTC) - self._min_age, but_newest=self._recent_items
        )
        # the strategy "never" also excludes old conversations
        if old is not None and before.policy.strategy != "never":
            request = CompactionRequest(through=old)
            created += (await self._compactor.compact(caller, conversation_id, request=request)).summaries
        refreshed = sum(
            summary.kind is SummaryKind.SUMMARY and summary.to_position in highlighted for summary in created
        )
        return len(created), refreshed
