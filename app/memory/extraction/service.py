"""Extraction: finds facts in the new turns of a conversation and stores them, in a job or a call.

Each step reads the next turns, finds their statements by the model or the rules without an open transaction (`batch`),
and stores the result in one commit. If anything has changed since the read, nothing is stored and the next step reads
again. The commit also advances `facts_seq`, so that no turn counts twice.

If the model cannot answer, it is asked once more with half of the turns. Then the rules read them, and the head of the
conversation keeps which turns these are: a job asks the model about them later, with growing delays.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from app.audit.schemas import Action
from app.audit.service import record
from app.conversations.schemas.sources import ReadByRules, Unread
from app.conversations.service import FactSources, FactSourceService
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Busy, NotFound
from app.core.ids import ConversationId, TenantId, TurnId, format_id
from app.core.telemetry import get_logger
from app.formats.schemas import Role
from app.memory.extraction.batch import BatchResult, ModelReader, TurnBatch, open_batch, read_by_rules
from app.memory.extraction.request_sizes import ExtractionRequest, RequestLimits, first_turns, request_limits
from app.memory.facts.fact_writer import FactWriter
from app.memory.facts.merge import Outcome
from app.memory.facts.store import FactKey, Origin
from app.memory.schemas import Extraction, fact_text
from app.providers.service import ChatModel
from app.tenancy.schemas import Caller

_PAGE = 200
_MAX_STEPS = 8
_TRIES = 5
# after this many attempts of a job, a temporary failure of the model counts as permanent
_MAX_TEMPORARY_FAILURES = 4
# maximum of statements that one commit merges
_MAX_STATEMENTS = 200
# the same request would fail again: the model is asked for less
_ASK_FOR_LESS: Final = frozenset({"model_timeout", "model_context_exceeded", "model_invalid"})
# after so many failed batches, a run asks no model any more
_MAX_FAILED_BATCHES = 2
# turns that only rules have read are read again after an hour, then after twice as long, up to a day
_FIRST_DELAY_S = 3_600.0
_MAX_DELAY_S = 86_400.0
# after so many attempts, turns whose own request fails are left to the rules
_MAX_ATTEMPTS_AGAIN = 4


@dataclass(slots=True)
class _Tally:
    recorded: int = 0
    repeated: int = 0
    ended: int = 0
    passed_over: int = 0
    redacted: Counter[str] = field(default_factory=Counter[str])
    read_through: int = 0
    continues: bool = False

    def count(self, outcome: Outcome) -> None:
        match outcome:
            case Outcome.RECORDED:
                self.recorded += 1
            case Outcome.REPEATED:
                self.repeated += 1
            case Outcome.ENDED:
                self.ended += 1
            case _:
                self.passed_over += 1


@dataclass(slots=True)
class _ModelUse:
    """How one run asks the model. `patient`: a temporary failure is raised, for a retry.

    `max_turns`: the turns of a request at most, after one with more has failed.
    """

    patient: bool
    max_turns: int | None = None
    failed_batches: int = 0
    has_answered: bool = False

    @property
    def is_given_up(self) -> bool:
        return self.failed_batches >= _MAX_FAILED_BATCHES

    def count_failure(self, error: AppError) -> None:
        # one that is away will not answer the next batch either
        self.failed_batches += 1 if error.code == "model_invalid" else _MAX_FAILED_BATCHES


@dataclass(frozen=True, slots=True)
class ExtractionPreview:
    """What an extraction would read, through the seq `reach`.

    `requests`: the sizes of the requests to the model.
    """

    enabled: bool
    turns: int
    tokens: int
    requests: Sequence[ExtractionRequest]
    reach: int


class Extractor:
    """Extractor of facts from turns: by jobs after turns are stored, and on request."""

    def __init__(
        self,
        database: Database,
        *,
        sources: FactSources,
        turns: FactSourceService,
        writer: FactWriter,
        chat: ChatModel | None,
        max_output_tokens: int,
    ) -> None:
        self._database = database
        self._sources = sources
        self._turns = turns
        self._writer = writer
        self._chat = chat
        self._reader = None if chat is None else ModelReader(chat)
        self._max_output_tokens = max_output_tokens
        self._log = get_logger()

    @property
    def ignored(self) -> Counter[tuple[str, str]]:
        """Return the numbers of what models named and this process ignored, by purpose and reason."""
        return Counter() if self._reader is None else self._reader.ignored

    async def run(self, caller: Caller, conversation_id: ConversationId, *, attempt: int) -> None:
        """Extract facts from new turns if that is enabled. Raises the model's error if a retry may help."""
        use = _ModelUse(patient=attempt < _MAX_TEMPORARY_FAILURES)
        tally = await self._advance(caller, conversation_id, use, through=None, asked=False)
        if use.has_answered:
            await self._read_again(caller, conversation_id, use, tally, asked=False)
        if tally.continues:
            await self._turns.enqueue(caller, conversation_id)

    async def read_again(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Ask the model about the turns that only rules have read, if extraction is enabled.

        Raises none of its errors: a job tries again later.
        """
        await self._read_again(caller, conversation_id, _ModelUse(patient=False), _Tally(), asked=False)

    async def extract(self, caller: Caller, conversation_id: ConversationId, *, through: UUID | None) -> Extraction:
        """Extract facts from new turns, up to a turn if one is given.

        Raises NotFound, Conflict if that turn is superseded, Busy, and the model's error if a retry may help.
        """
        last_seq = None
        if through is not None:
            last_seq = await self._turns.seq_of(caller, conversation_id, turn_id=TurnId(through))
        use = _ModelUse(patient=True)
        tally = await self._advance(caller, conversation_id, use, through=last_seq, asked=True)
        if not use.failed_batches:
            await self._read_again(caller, conversation_id, use, tally, asked=True)
        if tally.continues and last_seq is None:
            await self._turns.enqueue(caller, conversation_id)
        return Extraction(
            conversation_id=format_id(conversation_id),
            read_through=tally.read_through,
            continues=tally.continues,
            recorded=tally.recorded,
            repeated=tally.repeated,
            ended=tally.ended,
            passed_over=tally.passed_over,
            redacted=dict(tally.redacted),
        )

    async def preview(self, caller: Caller, conversation_id: ConversationId, *, limit: int) -> ExtractionPreview:
        """Return what an extraction would read now, of up to `limit` turns, without asking a model. Raises NotFound."""
        unread = await self._turns.unread(caller, conversation_id, through=None, limit=limit)
        requests: list[ExtractionRequest] = []
        rest = unread
        while self._chat is not None and rest.turns:
            limits = self._limits(caller.tenant_id, self._chat, None)
            batch = limits.first_of(rest)
            if any(source.turn.role is Role.USER for source in batch.turns):
                # personal data is looked for by a request of its own
                requests += [limits.size_of(batch.turns)] * (2 if unread.redact else 1)
            rest = replace(rest, turns=rest.turns[len(batch.turns) :])
        return ExtractionPreview(
            enabled=unread.enabled,
            turns=len(unread.turns),
            tokens=sum(source.turn.content_tokens for source in unread.turns),
            requests=requests,
            reach=unread.reach,
        )

    def _limits(self, tenant_id: TenantId, chat: ChatModel, use: _ModelUse | None) -> RequestLimits:
        limits = request_limits(chat.window(tenant_id), max_output_tokens=self._max_output_tokens)
        if use is None or use.max_turns is None:
            return limits
        return replace(limits, turns=min(limits.turns, use.max_turns))

    async def _advance(
        self, caller: Caller, conversation_id: ConversationId, use: _ModelUse, *, through: int | None, asked: bool
    ) -> _Tally:
        tally = _Tally()
        lost = steps = 0
        while steps < _MAX_STEPS:
            unread = await self._turns.unread(caller, conversation_id, through=through, limit=_PAGE)
            tally.read_through = unread.after
            if unread.reach <= unread.after or not (asked or unread.enabled):
                return tally
            unread, result = await self._find(caller.tenant_id, unread, use)
            unread, result = _limited(unread, result)
            if await self._store(caller, unread, result, tally):
                steps += 1
                continue
            lost += 1
            self._log.info("facts.discarded", conversation_id=conversation_id, attempt=lost)
            if lost == _TRIES:
                raise Busy(
                    "resource_busy",
                    "The conversation changes faster than facts are extracted from it.",
                    retry_after_s=1,
                )
        tally.continues = True
        return tally

    async def _read_again(
        self, caller: Caller, conversation_id: ConversationId, use: _ModelUse, tally: _Tally, *, asked: bool
    ) -> None:
        """Read the turns by the model that only rules have read. If it fails, a job tries again later."""
        if self._reader is None:
            return
        for _ in range(_MAX_STEPS):
            unread = await self._turns.unread(caller, conversation_id, through=None, limit=_PAGE, again=True)
            if unread.by_rules is None or not (asked or unread.enabled):
                return
            unread, _, result = await self._ask(self._reader, caller.tenant_id, unread, use)
            if isinstance(result, AppError):
                await self._postpone(caller, conversation_id, unread, result)
                return
            unread, result = _limited(unread, result)
            if not await self._store(caller, unread, result, tally):
                break
        await self._postpone(caller, conversation_id, None, None)

    async def _postpone(
        self, caller: Caller, conversation_id: ConversationId, unread: Unread | None, error: AppError | None
    ) -> None:
        """Enqueue the job that reads turns again: at once, or after an error later each time.

        `unread`: the turns that the model was asked about. They are left to the rules if their own request has failed
        several times.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            head = (await self._sources.lock(caller, tx, conversation_ids=[conversation_id])).get(conversation_id)
            by_rules, delay_s = None if head is None else head.by_rules, 0.0
            if by_rules is None:
                return
            if error is not None and unread is not None and by_rules == unread.by_rules:
                self._log.warning("facts.still_by_rules", code=error.code, attempt=by_rules.tries + 1)
                by_rules, delay_s = _after_failure(by_rules, error, reach=unread.reach)
            delay = None if by_rules is None else delay_s
            await self._sources.record_by_rules(caller, tx, conversation_id, by_rules, delay_s=delay)

    # finding statements

    async def _find(self, tenant_id: TenantId, unread: Unread, use: _ModelUse) -> tuple[Unread, BatchResult]:
        """Return the first turns of a page with their statements: the model's, or the rules' without a model.

        Raises a temporary failure of the model if the run is patient.
        """
        if self._reader is None:
            return unread, await read_by_rules(await open_batch(unread))
        if use.is_given_up:
            by_rules = await read_by_rules(await open_batch(unread))
            return unread, replace(by_rules, model_failed=True)
        part, batch, result = await self._ask(self._reader, tenant_id, unread, use)
        if not isinstance(result, AppError):
            return part, result
        may_pass = result.retryable and result.code not in {*_ASK_FOR_LESS, "model_budget_exhausted"}
        if may_pass and use.patient:
            raise result
        self._log.warning("facts.by_rules", code=result.code)
        use.count_failure(result)
        # the batch is redacted by the model if only its second answer has failed
        by_rules = await read_by_rules(batch)
        # one that declines these turns would decline them again
        return part, replace(by_rules, model_failed=result.code != "model_refused")

    async def _ask(
        self, reader: ModelReader, tenant_id: TenantId, unread: Unread, use: _ModelUse
    ) -> tuple[Unread, TurnBatch, BatchResult | AppError]:
        """Ask the model about the first turns of a page; once more about half of them if it cannot answer.

        Return the turns that it was asked about last, and their statements or its last error.
        """
        part = self._limits(tenant_id, reader.chat, use).first_of(unread)
        batch = await open_batch(part)
        result = await self._ask_once(reader, tenant_id, batch, use)
        if isinstance(result, AppError) and result.code in _ASK_FOR_LESS and len(part.turns) > 1:
            part = first_turns(part, (len(part.turns) + 1) // 2)
            use.max_turns = len(part.turns)
            batch = await open_batch(part)
            result = await self._ask_once(reader, tenant_id, batch, use)
        return part, batch, result

    async def _ask_once(
        self, reader: ModelReader, tenant_id: TenantId, batch: TurnBatch, use: _ModelUse
    ) -> BatchResult | AppError:
        if not batch.people:
            return BatchResult([], 0, batch.redacted)
        try:
            result = await reader.read(tenant_id, batch, limits=self._limits(tenant_id, reader.chat, use))
        except AppError as error:
            return error
        use.has_answered = True
        return result

    # storing facts

    async def _store(self, caller: Caller, unread: Unread, result: BatchResult, tally: _Tally) -> bool:
        """Store the statements and advance `facts_seq`. Return False, storing nothing, if sources have changed.

        Raises NotFound if the conversation does not exist.
        """
        prepared = await self._writer.prepare(
            caller,
            (fact_text(said.subject, said.predicate, said.object) for said in result.statements if not said.negated),
        )
        read = {turn.id: turn.content_hash for turn in unread.turns}
        outcomes: list[Outcome] = []
        async with self._database.transaction(caller.tenant_id) as tx:
            heads = await self._sources.lock(caller, tx, conversation_ids=[unread.conversation_id])
            if (head := heads.get(unread.conversation_id)) is None:
                raise NotFound("not_found", "There is no such conversation.")
            is_same = head.by_rules == unread.by_rules if unread.again else head.facts_seq == unread.after
            if not is_same or not await self._sources.has_same_policy(caller, tx, unread):
                return False
            sources = await self._sources.lock_turns(caller, tx, turn_ids=list(read)) if result.statements else {}
            if result.statements and {key: source.content_hash for key, source in sources.items()} != read:
                return False
            keyed = [
                (FactKey(unread.owner or "", statement.subject, statement.predicate), statement)
                for statement in result.statements
            ]
            timelines = await self._writer.open(caller, tx, keys=sorted({key for key, _ in keyed}))
            origins: dict[UUID | None, Origin] = {
                key: Origin(source.conversation_id, unread.project, source.actor, source.content_hash, head.rev + 1)
                for key, source in sources.items()
            }
            for key, statement in keyed:
                outcomes.append(timelines[key].merge(statement, origins).outcome)
                await asyncio.sleep(0)  # a key may have many facts: let other requests run
            await self._writer.write(caller, tx, timelines=timelines.values(), prepared=prepared)
            has_facts = any(outcome is not Outcome.IGNORED for outcome in outcomes)
            gained = any(outcome in {Outcome.RECORDED, Outcome.REPEATED} for outcome in outcomes)
            await self._sources.record_reading(
                caller,
                tx,
                ConversationId(unread.conversation_id),
                read_through=None if unread.again else unread.reach,
                has_facts=has_facts,
                rev=head.rev + 1 if gained else None,
            )
            await self._record_by_rules(caller, tx, head.by_rules, unread, result)
            record(
                tx, caller, Action.FACT_EXTRACT, conversation_id=unread.conversation_id, counts={"facts": len(outcomes)}
            )
        for outcome in outcomes:
            tally.count(outcome)
        tally.passed_over += result.passed_over
        tally.redacted.update(result.redacted)
        tally.read_through = tally.read_through if unread.again else unread.reach
        self._log.info("facts.extracted", conversation_id=unread.conversation_id, count=len(outcomes))
        return True

    async def _record_by_rules(
        self, caller: Caller, tx: Transaction, before: ReadByRules | None, unread: Unread, result: BatchResult
    ) -> None:
        """Write which turns only rules have read, after a batch."""
        after, delay_s = before, None
        if unread.again:
            after = None if before is None else _rest(before, unread.reach)
        elif result.model_failed:
            after, delay_s = _with_range(before, unread.after + 1, unread.reach), _FIRST_DELAY_S
        if after != before:
            await self._sources.record_by_rules(
                caller, tx, ConversationId(unread.conversation_id), after, delay_s=delay_s
            )


def _after_failure(by_rules: ReadByRules, error: AppError, *, reach: int) -> tuple[ReadByRules | None, float]:
    """Return which turns to read again after a failure, and in how many seconds."""
    tries = by_rules.tries + 1
    is_its_own = error.code in _ASK_FOR_LESS and tries >= _MAX_ATTEMPTS_AGAIN
    if is_its_own or error.code == "model_refused":
        return _rest(by_rules, reach), _FIRST_DELAY_S
    return replace(by_rules, tries=tries), min(_FIRST_DELAY_S * 2.0**tries, _MAX_DELAY_S)


def _rest(by_rules: ReadByRules, reach: int) -> ReadByRules | None:
    """Return the turns after a seq that only rules have read."""
    return None if reach >= by_rules.last else ReadByRules(reach + 1, by_rules.last)


def _with_range(by_rules: ReadByRules | None, first_seq: int, last_seq: int) -> ReadByRules:
    if by_rules is None:
        return ReadByRules(first_seq, last_seq)
    return replace(by_rules, first=min(by_rules.first, first_seq), last=max(by_rules.last, last_seq))


def _limited(unread: Unread, result: BatchResult) -> tuple[Unread, BatchResult]:
    """Return as many of the turns as one commit stores the statements of; the next step reads the others again."""
    statements_of = Counter(source for statement in result.statements for source in statement.sources)
    total = 0
    for count, turn in enumerate(unread.turns):
        total += statements_of[turn.id]
        if count and total > _MAX_STATEMENTS:
            turn_ids = {other.id for other in unread.turns[:count]}
            statements = [statement for statement in result.statements if turn_ids.issuperset(statement.sources)]
            return first_turns(unread, count), replace(result, statements=statements)
    return unread, result
