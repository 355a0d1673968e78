"""Extraction: finds facts in the new turns of a conversation and stores them, in a job or a call.

Each step reads the next turns, redacts personal data, asks the model or the rules without an open transaction, and
stores the result in one commit. If anything has changed since the read, nothing is stored and the next step reads
again. The commit also advances `facts_seq`, so that no turn counts twice.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from app.audit.schemas import Action
from app.audit.service import record
from app.conversations.schemas.conversations import content_text
from app.conversations.schemas.sources import TextTurn, Unread
from app.conversations.service import Conversations
from app.core.database.transactions import Database
from app.core.errors import AppError, Busy, NotFound
from app.core.ids import ConversationId, TenantId, TurnId, format_id
from app.core.telemetry import get_logger
from app.formats.schemas import Role
from app.memory.extraction.model_extractor import ExtractedTurn, Names, ask_statements, find_personal
from app.memory.extraction.rule_extractor import find_statements
from app.memory.facts.fact_writer import FactWriter
from app.memory.facts.merge import Outcome
from app.memory.facts.spelling import names_to_actors, object_key
from app.memory.facts.store import FactKey, Origin
from app.memory.pii.model_findings import replace_personal
from app.memory.pii.pii_filter import RedactedTexts, is_personal_fact
from app.memory.pii.redaction import Redaction, redact
from app.memory.schemas import Extraction, StatedBy, Statement, fact_text
from app.providers.schemas import ChatModel, ModelPurpose
from app.tenancy.schemas import Caller

_PAGE = 200
_MAX_STEPS = 8
_TRIES = 5
# after this many attempts of a job, a temporary failure of the model counts as permanent
_MAX_TEMPORARY_FAILURES = 4
# limits of a model request: it fits the small context windows of local models, with room for the answer
_MAX_TURNS = 40
_MAX_TOKENS = 6_000
_MAX_TOKENS_OF_A_TURN = 1_500
# maximum of statements that one commit merges
_MAX_STATEMENTS = 200
# longer texts are processed in a thread, because they would block the event loop
_INLINE_CHARACTERS = 2_000


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


@dataclass(frozen=True, slots=True)
class _BatchResult:
    """Result of a batch: statements, the number of those passed over, and counts of redacted data by kind."""

    statements: Sequence[Statement]
    passed_over: int
    redacted: Counter[str]


@dataclass(frozen=True, slots=True)
class ExtractionPreview:
    """What an extraction would read, through the seq `reach`.

    `requests`: about the tokens of the turns in each request to the model.
    """

    enabled: bool
    turns: int
    tokens: int
    requests: Sequence[int]
    reach: int


class Extractor:
    """Extractor of facts from turns: by jobs after turns are stored, and on request."""

    def __init__(
        self, database: Database, *, conversations: Conversations, writer: FactWriter, chat: ChatModel | None
    ) -> None:
        self._database = database
        self._sources = conversations.sources
        self._writer = writer
        self._chat = chat
        self.ignored: Counter[tuple[str, str]] = Counter()
        """Number of statements and pieces of personal data that models named and this process ignored, by reason."""
        self._log = get_logger()

    async def run(self, caller: Caller, conversation_id: ConversationId, *, attempt: int) -> None:
        """Extract facts from new turns if that is enabled. Raises the model's error if a retry may help."""
        tally = await self._advance(
            caller, conversation_id, through=None, patient=attempt < _MAX_TEMPORARY_FAILURES, asked=False
        )
        if tally.continues:
            await self._sources.enqueue(caller, conversation_id)

    async def extract(self, caller: Caller, conversation_id: ConversationId, *, through: UUID | None) -> Extraction:
        """Extract facts from new turns, up to a turn if one is given.

        Raises NotFound, Conflict if that turn is superseded, Busy, and the model's error if a retry may help.
        """
        last = None
        if through is not None:
            last = await self._sources.seq_of(caller, conversation_id, turn_id=TurnId(through))
        tally = await self._advance(caller, conversation_id, through=last, patient=True, asked=True)
        if tally.continues and last is None:
            await self._sources.enqueue(caller, conversation_id)
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
        unread = await self._sources.unread(caller, conversation_id, through=None, limit=limit)
        requests: list[int] = []
        rest = unread
        while rest.turns:
            batch = _batch(rest)
            if any(one.turn.role is Role.USER for one in batch.turns):
                tokens = sum(min(one.turn.content_tokens, _MAX_TOKENS_OF_A_TURN) for one in batch.turns)
                # personal data is looked for by a request of its own
                requests += [tokens, tokens] if unread.redact else [tokens]
            rest = replace(rest, turns=rest.turns[len(batch.turns) :])
        return ExtractionPreview(
            enabled=unread.enabled,
            turns=len(unread.turns),
            tokens=sum(one.turn.content_tokens for one in unread.turns),
            requests=requests if self._chat is not None else [],
            reach=unread.reach,
        )

    async def _advance(
        self, caller: Caller, conversation_id: ConversationId, *, through: int | None, patient: bool, asked: bool
    ) -> _Tally:
        tally = _Tally()
        lost = steps = 0
        while steps < _MAX_STEPS:
            unread = await self._sources.unread(caller, conversation_id, through=through, limit=_PAGE)
            tally.read_through = unread.after
            if unread.reach <= unread.after or not (asked or unread.enabled):
                return tally
            unread = _batch(unread) if self._chat is not None else unread
            unread, found = _limited(unread, await self._find(caller.tenant_id, unread, patient=patient))
            if await self._store(caller, unread, found, tally):
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

    # finding statements

    async def _find(self, tenant_id: TenantId, unread: Unread, *, patient: bool) -> _BatchResult:
        """Return the statements of a batch: the model's, or the rules' if there is no model or it fails permanently."""
        taken: Counter[str] = Counter()
        redacted_texts = RedactedTexts() if unread.redact else None
        shown = await _shown(unread, taken, redacted_texts)
        people = [turn for turn in shown if turn.role is Role.USER and turn.text.strip()]
        if not people:
            return _BatchResult([], 0, taken)
        names = Names(unread.owner, _actors(unread))
        if self._chat is not None:
            try:
                if redacted_texts is not None:
                    shown = await self._redacted(self._chat, tenant_id, shown, taken, redacted_texts)
                statements, passed_over = await ask_statements(
                    self._chat, tenant_id=tenant_id, turns=shown, names=names, redacted_texts=redacted_texts
                )
                self._count_ignored(ModelPurpose.FACTS, passed_over)
                by_rules = await _by_rules(people, names, Counter(), redacted=unread.redact)
                statements = _confirmed(statements, by_rules.statements)
            except AppError as error:
                # a temporary failure is raised for a retry; after a permanent one, or without budget, use the rules
                if error.retryable and patient and error.code != "model_budget_exhausted":
                    raise
                self._log.warning("facts.by_rules", code=error.code)
                people = [turn for turn in shown if turn.role is Role.USER and turn.text.strip()]
            else:
                return _BatchResult(statements, passed_over.total(), taken)
        return await _by_rules(people, names, taken, redacted=unread.redact)

    async def _redacted(
        self,
        chat: ChatModel,
        tenant_id: TenantId,
        shown: Sequence[ExtractedTurn],
        taken: Counter[str],
        redacted_texts: RedactedTexts,
    ) -> list[ExtractedTurn]:
        """Return the turns without the personal data that the model finds and the patterns missed."""
        texts = [turn.text for turn in shown]
        personal, ignored = await find_personal(chat, tenant_id=tenant_id, texts=texts)
        self._count_ignored(ModelPurpose.REDACTION, ignored)
        if not personal:
            return list(shown)
        redacted_texts.add(piece for piece, _ in personal)
        replaced = await asyncio.to_thread(lambda: [replace_personal(text, personal) for text in texts])
        taken.update(kind.value for _, kinds in replaced for kind in kinds)
        return [replace(turn, text=text) for turn, (text, _) in zip(shown, replaced, strict=True)]

    def _count_ignored(self, purpose: ModelPurpose, reasons: Mapping[str, int]) -> None:
        """Count what a model said and the turns do not support, for the metrics."""
        self.ignored.update({(purpose.value, reason): count for reason, count in reasons.items()})

    # storing facts

    async def _store(self, caller: Caller, unread: Unread, found: _BatchResult, tally: _Tally) -> bool:
        """Store the statements and advance `facts_seq`. Return False, storing nothing, if sources have changed.

        Raises NotFound if the conversation does not exist.
        """
        prepared = await self._writer.prepare(
            caller, (fact_text(one.subject, one.predicate, one.object) for one in found.statements if not one.negated)
        )
        read = {turn.id: turn.content_hash for turn in unread.turns}
        outcomes: list[Outcome] = []
        async with self._database.transaction(caller.tenant_id) as tx:
            heads = await self._sources.lock(caller, tx, conversation_ids=[unread.conversation_id])
            if (head := heads.get(unread.conversation_id)) is None:
                raise NotFound("not_found", "There is no such conversation.")
            if head.facts_seq != unread.after or not await self._sources.has_same_policy(caller, tx, unread):
                return False
            sources = await self._sources.lock_turns(caller, tx, turn_ids=list(read)) if found.statements else {}
            if found.statements and {key: source.content_hash for key, source in sources.items()} != read:
                return False
            keyed = [(FactKey(unread.owner or "", one.subject, one.predicate), one) for one in found.statements]
            timelines = await self._writer.open(caller, tx, keys=sorted({key for key, _ in keyed}))
            origins: dict[UUID | None, Origin] = {
                key: Origin(source.conversation_id, unread.project, source.actor, source.content_hash, head.rev + 1)
                for key, source in sources.items()
            }
            for key, one in keyed:
                outcomes.append(timelines[key].merge(one, origins).outcome)
                await asyncio.sleep(0)  # a key may have many facts: let other requests run
            await self._writer.write(caller, tx, timelines=timelines.values(), prepared=prepared)
            has_facts = any(outcome is not Outcome.IGNORED for outcome in outcomes)
            gained = any(outcome in {Outcome.RECORDED, Outcome.REPEATED} for outcome in outcomes)
            await self._sources.record_reading(
                caller,
                tx,
                ConversationId(unread.conversation_id),
                read_through=unread.reach,
                has_facts=has_facts,
                rev=head.rev + 1 if gained else None,
            )
            record(
                tx, caller, Action.FACT_EXTRACT, conversation_id=unread.conversation_id, counts={"facts": len(outcomes)}
            )
        for outcome in outcomes:
            tally.count(outcome)
        tally.passed_over += found.passed_over
        tally.redacted.update(found.redacted)
        tally.read_through = unread.reach
        self._log.info("facts.extracted", conversation_id=unread.conversation_id, count=len(outcomes))
        return True


def _batch(unread: Unread) -> Unread:
    """Return the first turns of a page, as many as one model request shows."""
    tokens = 0
    for count, turn in enumerate(unread.turns):
        tokens += min(turn.turn.content_tokens, _MAX_TOKENS_OF_A_TURN)
        if count and (tokens > _MAX_TOKENS or count == _MAX_TURNS):
            return replace(unread, turns=unread.turns[:count], reach=turn.seq - 1)
    return unread


def _limited(unread: Unread, found: _BatchResult) -> tuple[Unread, _BatchResult]:
    """Return as many of the turns as one commit stores the statements of; the next step reads the others again."""
    statements_of = Counter(source for one in found.statements for source in one.sources)
    total = 0
    for count, turn in enumerate(unread.turns):
        total += statements_of[turn.id]
        if count and total > _MAX_STATEMENTS:
            kept = {other.id for other in unread.turns[:count]}
            statements = [one for one in found.statements if kept.issuperset(one.sources)]
            shorter = replace(unread, turns=unread.turns[:count], reach=turn.seq - 1)
            return shorter, _BatchResult(statements, found.passed_over, found.redacted)
    return unread, found


async def _shown(unread: Unread, taken: Counter[str], redacted_texts: RedactedTexts | None) -> list[ExtractedTurn]:
    """Return the turns of users and assistants without tool results, redacted if `redacted_texts` is given."""
    turns = [one for one in unread.turns if one.turn.role in {Role.USER, Role.ASSISTANT}]
    texts = [content_text(one.turn.content) for one in turns]
    if redacted_texts is not None:
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            redactions = _redactions(texts)
        else:
            redactions = await asyncio.to_thread(_redactions, texts)
        for text, one in zip(texts, redactions, strict=True):
            taken.update(one.counts)
            redacted_texts.add_redaction(text, one)
        texts = [one.text for one in redactions]
    return [_turn_to_show(one, text) for one, text in zip(turns, texts, strict=True)]


def _redactions(texts: Sequence[str]) -> list[Redaction]:
    return [redact(text) for text in texts]


def _turn_to_show(turn: TextTurn, text: str) -> ExtractedTurn:
    return ExtractedTurn(turn.id, turn.turn.actor, turn.turn.role, turn.said_at, text)


def _actors(unread: Unread) -> dict[str, str]:
    return names_to_actors(
        (one.actor, [name for name in (one.name, *one.aliases) if name]) for one in unread.participants
    )


def _confirmed(statements: Sequence[Statement], by_rules: Sequence[Statement]) -> list[Statement]:
    """Return a model's statements, as those of the rules where these find the same in the same turn."""
    found = {(one.sources, one.subject, one.predicate, object_key(one.object), one.negated): one for one in by_rules}
    confirmed: list[Statement] = []
    for one in statements:
        same = found.get((one.sources, one.subject, one.predicate, object_key(one.object), one.negated))
        if same is None:
            confirmed.append(one)
        else:
            confirmed.append(replace(one, stated_by=StatedBy.RULES, confidence=max(one.confidence, same.confidence)))
    return confirmed


async def _by_rules(
    people: Sequence[ExtractedTurn], names: Names, taken: Counter[str], *, redacted: bool
) -> _BatchResult:
    def find() -> list[Statement]:
        return [
            one
            for turn in people
            for one in find_statements(
                turn.text,
                speaker=turn.speaker or names.owner or "user",
                source=turn.id,
                said_at=turn.said_at,
                owner=names.owner,
                actors=names.actors,
            )
        ]

    if sum(len(turn.text) for turn in people) <= _INLINE_CHARACTERS:
        statements = find()
    else:
        statements = await asyncio.to_thread(find)
    # the caller chooses the names of actors: they are not personal data taken from a text
    called = {name for turn in people if (name := turn.speaker)} | {names.owner, *names.actors.values()}
    kept = [
        one
        for one in statements
        if not redacted or not is_personal_fact("" if one.subject in called else one.subject, one.predicate, one.object)
    ]
    return _BatchResult(kept, len(statements) - len(kept), taken)
