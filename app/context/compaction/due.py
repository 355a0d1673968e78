"""The turns that a compaction summarises next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.context.compaction.cut import at_boundary, oldest_half
from app.conversations.schemas.conversations import Compaction
from app.conversations.schemas.summaries import SourceTurn, ValidSummaries
from app.conversations.service import Summaries
from app.core.ids import ConversationId
from app.tenancy.schemas import Caller

MAX_READ: Final = 2000
"""Turns that one step reads at most."""


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One run: its policy, and the position through which to summarise, if one is given.

    `patient`: a temporary failure of the model is raised, so that the job or the call is tried again. `is_job`: no
    caller waits for it.
    """

    policy: Compaction
    through: int | None
    forced: bool
    patient: bool
    is_job: bool


@dataclass(frozen=True, slots=True)
class DueTurns:
    """Turns to be summarised. `reach`: the last position that a summary of all covers; None: the last turn's."""

    turns: Sequence[SourceTurn]
    reach: int | None

    def first(self, count: int) -> "DueTurns":
        """Return the oldest `count` of the turns."""
        return self if count >= len(self.turns) else DueTurns(self.turns[:count], None)

    def end(self) -> int:
        """Return the last position that a summary of the turns covers."""
        return self.turns[-1].turn.position if self.reach is None else self.reach


async def find_due(
    summaries: Summaries,
    caller: Caller,
    conversation_id: ConversationId,
    valid: ValidSummaries,
    run: CompactionRun,
) -> DueTurns | None:
    """Return the oldest turns without a summary that are to be summarised now."""
    policy, through = run.policy, run.through
    over = valid.turns > policy.trigger_turns or valid.tokens > policy.trigger_tokens
    if not over and valid.beyond is None and (through is None or through <= valid.position):
        return None
    turns, more = await summaries.sources(
        caller, conversation_id, after=valid.position, before=valid.beyond, limit=MAX_READ
    )
    if valid.beyond is not None:  # all turns up to the next summary, even if they are only tombstones
        return DueTurns(turns, None if more else valid.beyond - 1)
    canonical = [source.turn for source in turns]
    if through is not None:
        cut = at_boundary(canonical, sum(turn.position <= through for turn in canonical))
    else:
        cut = oldest_half(canonical, max_turns=policy.trigger_turns, max_tokens=policy.trigger_tokens)
    return DueTurns(turns[:cut], None) if cut else None
