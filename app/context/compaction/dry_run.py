"""Dry runs: what compaction, extraction and retention would do to a conversation now, and at what cost of the model.

Reads only: it changes no row, enqueues no job and asks no model. So the tokens of requests are estimates, and those of
answers are maxima.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from app.context.compaction.cut import oldest_half
from app.context.compaction.drafts import earlier_of_kind
from app.context.compaction.due import MAX_READ
from app.context.compaction.requests import TURN_TOKENS, RequestSize, request_size
from app.context.schemas import CompactionDryRun, DryRun, ExtractionDryRun, ModelCost, RetentionDryRun
from app.conversations.schemas.summaries import SummaryKind, ValidSummaries
from app.conversations.service import Conversations, RetentionEraser, Summaries
from app.core.database.transactions import Database
from app.core.ids import ConversationId, format_id
from app.formats.schemas import CanonicalTurn
from app.memory.service import FactService
from app.providers.service import ChatModel
from app.settings import Settings
from app.tenancy.schemas import Caller

_INSTRUCTION_TOKENS: Final = 400
_PER_PRICE: Final = 1_000_000


class DryRuns:
    """Computes dry runs."""

    def __init__(
        self,
        database: Database,
        *,
        conversations: Conversations,
        summaries: Summaries,
        retention: RetentionEraser,
        facts: FactService,
        chat: ChatModel | None,
        settings: Settings,
    ) -> None:
        self._database = database
        self._conversations = conversations
        self._summaries = summaries
        self._retention_eraser = retention
        self._facts = facts
        self._chat = chat
        self._settings = settings.chat
        self._summaries_by = settings.conversations.summaries

    async def run(self, caller: Caller, conversation_id: ConversationId) -> DryRun:
        """Return what would be done to a conversation now. Raises NotFound."""
        conversation = await self._conversations.get(caller, conversation_id)
        return DryRun(
            conversation_id=format_id(conversation_id),
            compaction=await self._compaction(caller, conversation_id),
            extraction=await self._extraction(caller, conversation_id, last_seq=conversation.last_seq),
            retention=await self._retention(caller, conversation_id, expires_at=conversation.expires_at),
        )

    async def _compaction(self, caller: Caller, conversation_id: ConversationId) -> CompactionDryRun:
        valid = await self._summaries.list_valid(caller, conversation_id)
        sources, more = await self._summaries.sources(
            caller, conversation_id, after=valid.position, before=valid.beyond, limit=MAX_READ
        )
        turns = [source.turn for source in sources]
        model = self._model(valid)
        size = None if model is None else self._size(caller, model)
        steps = self._steps(valid, turns, size)
        if not steps:
            return CompactionDryRun(kind=None, turns=0, tokens=0, summaries=0, through=None, continues=False, cost=None)
        done = sum(steps)
        cost, start, prompts = None, 0, list[int]()
        for number, count in enumerate(steps):
            summarised = turns[start : start + count]
            earlier = 0 if size is None else _earlier_tokens(valid, number, size)
            prompts.append(sum(turn.content_tokens for turn in summarised) + TURN_TOKENS * count + earlier)
            start += count
        if model is not None and size is not None:
            cost = self._cost(model, prompts, size.output * len(prompts))
        return CompactionDryRun(
            kind=SummaryKind.HIGHLIGHTS if model is None else SummaryKind.SUMMARY,
            turns=done,
            tokens=sum(turn.content_tokens for turn in turns[:done]),
            summaries=len(steps),
            through=format_id(sources[done - 1].id),
            continues=more and done == len(turns),
            cost=cost,
        )

    def _model(self, valid: ValidSummaries) -> str | None:
        """Return the model that would write the summaries; None: there would be highlights."""
        if self._chat is None or (valid.policy.summaries or self._summaries_by) == "highlights":
            return None
        return valid.policy.summarizer_model or self._chat.model

    def _size(self, caller: Caller, model: str) -> RequestSize | None:
        chat = self._chat
        limit = self._settings.llm_max_output_tokens
        if chat is None:
            return None
        return request_size(chat, model, tenant_id=caller.tenant_id, max_output_tokens=limit)

    def _steps(self, valid: ValidSummaries, turns: Sequence[CanonicalTurn], size: RequestSize | None) -> list[int]:
        """Return the numbers of turns of the summaries that a compaction would make one after another.

        `size`: the limits of requests to a model; None: no model is asked.
        """
        policy, steps, start = valid.policy, list[int](), 0
        if policy.strategy == "never":
            return []
        left_turns, left_tokens = valid.turns, valid.tokens
        while start < len(turns):
            over = left_turns > policy.trigger_turns or left_tokens > policy.trigger_tokens
            rest = turns[start:]
            if valid.beyond is not None:
                count = len(rest)
            elif over:
                count = oldest_half(rest, max_turns=policy.trigger_turns, max_tokens=policy.trigger_tokens)
            else:
                break
            if size is not None:
                count = size.turns(rest[:count], before_tokens=_earlier_tokens(valid, len(steps), size))
            if not count:
                break
            steps.append(count)
            start += count
            left_turns -= count
            left_tokens -= sum(turn.content_tokens for turn in rest[:count])
        return steps

    async def _extraction(self, caller: Caller, conversation_id: ConversationId, *, last_seq: int) -> ExtractionDryRun:
        preview = await self._facts.extractor.preview(caller, conversation_id, limit=MAX_READ)
        cost = None
        if self._chat is not None:
            prompts = [request.tokens for request in preview.requests]
            answers = sum(request.answer_tokens for request in preview.requests)
            cost = self._cost(self._chat.model, prompts, answers)
        return ExtractionDryRun(
            enabled=preview.enabled,
            turns=preview.turns,
            tokens=preview.tokens,
            continues=preview.reach < last_seq,
            cost=cost,
        )

    async def _retention(
        self, caller: Caller, conversation_id: ConversationId, *, expires_at: datetime | None
    ) -> RetentionDryRun:
        async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=True) as tx:
            policy, due = await self._retention_eraser.preview(
                caller, tx, conversation_id=conversation_id, limit=MAX_READ
            )
        return RetentionDryRun(
            policy=policy,
            turns=len(due),
            tokens=sum(turn.tokens for turn in due),
            continues=len(due) == MAX_READ,
            expires_at=expires_at,
        )

    def _cost(self, model: str, prompts: Sequence[int], completion: int) -> ModelCost:
        """Return the cost of requests with these prompts, whose answers have at most `completion` tokens together."""
        prompt = sum(prompts) + _INSTRUCTION_TOKENS * len(prompts)
        settings = self._settings
        price = settings.llm_price_prompt * prompt + settings.llm_price_completion * completion
        return ModelCost(
            model=model,
            calls=len(prompts),
            prompt_tokens=prompt,
            max_completion_tokens=completion,
            max_cost=price / _PER_PRICE,
        )


def _earlier_tokens(valid: ValidSummaries, number: int, size: RequestSize) -> int:
    """Return the tokens of the summaries that a request shows before the turns: of later ones the maximum."""
    if valid.policy.strategy == "hierarchical":
        return 0
    if number:
        return size.output
    return sum(summary.tokens for summary in earlier_of_kind(valid, SummaryKind.SUMMARY))
