"""Finds the statements of a batch of turns: by a chat model, or by rules. Stores nothing.

Personal data is taken out of the turns first, by patterns, and before the model is asked for facts by the model too.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.conversations.schemas.conversations import content_text
from app.conversations.schemas.sources import Unread
from app.core.ids import TenantId
from app.formats.schemas import Role
from app.memory.extraction.model_extractor import ExtractedTurn, Names, ask_statements, find_personal
from app.memory.extraction.request_sizes import RequestLimits
from app.memory.extraction.rule_extractor import find_statements
from app.memory.facts.spelling import names_to_actors, object_key
from app.memory.pii.model_findings import replace_personal
from app.memory.pii.pii_filter import RedactedTexts, is_personal_fact
from app.memory.pii.redaction import Redaction, redact
from app.memory.schemas import StatedBy, Statement
from app.providers.schemas import ModelPurpose
from app.providers.service import ChatModel

# longer texts are processed in a thread, because they would block the event loop
_INLINE_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of a batch: statements, the number of those passed over, and counts of redacted data by kind.

    `model_failed`: only the rules have read the turns, because the model has failed.
    """

    statements: Sequence[Statement]
    passed_over: int
    redacted: Counter[str]
    model_failed: bool = False


@dataclass(slots=True)
class TurnBatch:
    """The turns of a batch that are read, with the personal data that was taken out of them.

    `redacted_texts` is None if personal data is not redacted.
    """

    turns: list[ExtractedTurn]
    names: Names
    redacted_texts: RedactedTexts | None
    redacted: Counter[str]

    @property
    def people(self) -> list[ExtractedTurn]:
        """Return the turns of people: only these state facts."""
        return [turn for turn in self.turns if turn.role is Role.USER and turn.text.strip()]


async def open_batch(unread: Unread) -> TurnBatch:
    """Return the turns of users and assistants without tool results, redacted by patterns if that is required."""
    turns = [source for source in unread.turns if source.turn.role in {Role.USER, Role.ASSISTANT}]
    texts = [content_text(source.turn.content) for source in turns]
    redacted_texts = RedactedTexts() if unread.redact else None
    redacted: Counter[str] = Counter()
    if redacted_texts is not None:
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            redactions = _redactions(texts)
        else:
            redactions = await asyncio.to_thread(_redactions, texts)
        for text, redaction in zip(texts, redactions, strict=True):
            redacted.update(redaction.counts)
            redacted_texts.add_redaction(text, redaction)
        texts = [redaction.text for redaction in redactions]
    names = names_to_actors(
        (participant.actor, [name for name in (participant.name, *participant.aliases) if name])
        for participant in unread.participants
    )
    shown = [
        ExtractedTurn(source.id, source.turn.actor, source.turn.role, source.said_at, text)
        for source, text in zip(turns, texts, strict=True)
    ]
    return TurnBatch(shown, Names(unread.owner, names), redacted_texts, redacted)


def _redactions(texts: Sequence[str]) -> list[Redaction]:
    return [redact(text) for text in texts]


class ModelReader:
    """Reader of batches by a chat model."""

    def __init__(self, chat: ChatModel) -> None:
        self.chat = chat
        self.ignored: Counter[tuple[str, str]] = Counter()
        """Number of statements and pieces of personal data that were not supported, by purpose and reason."""

    async def read(self, tenant_id: TenantId, batch: TurnBatch, *, limits: RequestLimits) -> BatchResult:
        """Return the statements of a batch; it is redacted by the model before. Raises the errors of the model.

        A statement that the rules find in the same turn is theirs: the two agree.
        """
        if batch.redacted_texts is not None:
            await self._redact(tenant_id, batch, batch.redacted_texts, limits)
        statements, passed_over = await ask_statements(
            self.chat,
            tenant_id=tenant_id,
            turns=batch.turns,
            names=batch.names,
            redacted_texts=batch.redacted_texts,
            limits=limits,
        )
        self._count_ignored(ModelPurpose.FACTS, passed_over)
        by_rules = await read_by_rules(batch)
        confirmed = _confirmed(statements, by_rules.statements)
        return BatchResult(confirmed, passed_over.total(), batch.redacted)

    async def _redact(
        self, tenant_id: TenantId, batch: TurnBatch, redacted_texts: RedactedTexts, limits: RequestLimits
    ) -> None:
        """Take the personal data out of a batch that the model finds and the patterns missed."""
        texts = [turn.text for turn in batch.turns]
        personal, ignored = await find_personal(self.chat, tenant_id=tenant_id, texts=texts, limits=limits)
        self._count_ignored(ModelPurpose.REDACTION, ignored)
        if not personal:
            return
        redacted_texts.add(piece for piece, _ in personal)
        replaced = await asyncio.to_thread(lambda: [replace_personal(text, personal) for text in texts])
        batch.redacted.update(kind.value for _, kinds in replaced for kind in kinds)
        batch.turns = [replace(turn, text=text) for turn, (text, _) in zip(batch.turns, replaced, strict=True)]

    def _count_ignored(self, purpose: ModelPurpose, reasons: Mapping[str, int]) -> None:
        self.ignored.update({(purpose.value, reason): count for reason, count in reasons.items()})


def _confirmed(statements: Sequence[Statement], by_rules: Sequence[Statement]) -> list[Statement]:
    """Return a model's statements, as those of the rules where these find the same in the same turn."""
    of_rules = {_claim(statement): statement for statement in by_rules}
    confirmed: list[Statement] = []
    for statement in statements:
        same = of_rules.get(_claim(statement))
        if same is None:
            confirmed.append(statement)
        else:
            confidence = max(statement.confidence, same.confidence)
            confirmed.append(replace(statement, stated_by=StatedBy.RULES, confidence=confidence))
    return confirmed


def _claim(statement: Statement) -> tuple[object, ...]:
    """Return what a statement says, and its sources."""
    return (statement.sources, statement.subject, statement.predicate, object_key(statement.object), statement.negated)


async def read_by_rules(batch: TurnBatch) -> BatchResult:
    """Return the statements that the rules find in a batch."""
    people, names = batch.people, batch.names

    def find() -> list[Statement]:
        return [
            statement
            for turn in people
            for statement in find_statements(
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
    stored = [
        statement
        for statement in statements
        if batch.redacted_texts is None
        or not is_personal_fact(
            "" if statement.subject in called else statement.subject, statement.predicate, statement.object
        )
    ]
    return BatchResult(stored, len(statements) - len(stored), batch.redacted)
