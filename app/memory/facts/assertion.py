"""Checks facts that callers assert or correct, finds their conversation, and merges them in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.sources import LockedConversation, LockedTurn
from app.conversations.service import Conversations, FactSources
from app.core.database.transactions import Database, Transaction
from app.core.errors import Busy, Conflict, FieldError, Invalid, NotFound
from app.core.ids import ConversationId
from app.core.times import truncate_ms
from app.memory.facts.fact_timeline import FactTimeline
from app.memory.facts.fact_writer import FactWriter
from app.memory.facts.merge import Decision, Outcome, TimelineFact
from app.memory.facts.spelling import name_key, names_to_actors, object_key, predicate_key, resolve_subject
from app.memory.facts.store import NO_PROJECT, FactKey, Origin
from app.memory.schemas import FactCreate, FactUpdate, Statement, fact_text
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult
from app.tenancy.service import Tenancy


@dataclass(frozen=True, slots=True)
class Asserted:
    """Result of a call that changes facts: the fact that it named, and the changed facts.

    `is_new`: the fact is new. `gained`: it is new, or has more evidence than before.
    """

    fact_id: UUID
    changed: Sequence[UUID]
    is_new: bool = False
    gained: bool = False

    @property
    def fact_ids(self) -> list[UUID]:
        """Return the id of the named fact, then those of the other changed facts."""
        return [self.fact_id, *(changed_id for changed_id in self.changed if changed_id != self.fact_id)]


@dataclass(frozen=True, slots=True)
class _FactOrigin:
    """Place of a fact: its conversation, if it has exactly one, and all conversations that it is derived from."""

    conversation_id: UUID | None
    owner: str | None
    project: str
    participants: Sequence[Participant] = field(default_factory=tuple)
    conversations: Sequence[UUID] = field(default_factory=tuple)


class Asserter:
    """Service for assertions of facts."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        conversations: Conversations,
        sources: FactSources,
        writer: FactWriter,
    ) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._conversations = conversations
        self._sources = sources
        self._writer = writer

    async def assert_fact(
        self, caller: Caller, *, body: FactCreate, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[Asserted]:
        """Merge the statement of a caller into the facts of its key."""
        async with self._database.transaction(caller.tenant_id) as tx:
            before = await self._idempotency.find(caller, tx, idempotency_key, read=_read)
            if before is not None:
                return before
            places = await self._sources.places_of(caller, tx, turn_ids=body.source_turn_ids)
        place = await self._place(caller, body, places)
        place = replace(place, owner=caller.owner_of_new(place.project, place.owner))
        key, statement = _stated(body, place)
        text = fact_text(_display_subject(body, key), key.predicate, statement.object)
        prepared = await self._writer.prepare(caller, [text])
        async with self._database.transaction(caller.tenant_id) as tx:
            before = await self._idempotency.reserve(caller, tx, idempotency_key, read=_read)
            if before is not None:
                return before
            heads = await self._heads(caller, tx, place, body.project)
            _require_owner(body, place, heads)
            origins = await self._origins(caller, tx, body, place, heads)
            timeline = (await self._writer.open(caller, tx, keys=[key]))[key]
            done = _merged(timeline, statement, origins)
            await self._writer.write(caller, tx, timelines=[timeline], prepared=prepared)
            for conversation_id, head in heads.items():
                rev = head.rev + 1 if done.gained else None
                await self._sources.record_reading(
                    caller, tx, ConversationId(conversation_id), read_through=None, has_facts=True, rev=rev
                )
            record(
                tx,
                caller,
                Action.FACT_CREATE,
                ObjectKind.FACT,
                done.fact_id,
                conversation_id=place.conversation_id,
                counts={"facts": int(done.is_new)},
            )
            await self._idempotency.store_result(caller, tx, idempotency_key, done.fact_ids, is_new=done.is_new)
        return RequestResult(done, done.is_new)

    async def _place(self, caller: Caller, body: FactCreate, places: Mapping[UUID, UUID]) -> _FactOrigin:
        missing = [
            FieldError(f"/source_turn_ids/{number}", "no such turn, or not of the conversation")
            for number, turn_id in enumerate(body.source_turn_ids)
            if turn_id not in places or (body.conversation_id or places[turn_id]) != places[turn_id]
        ]
        if missing:
            raise NotFound("not_found", "There is no such turn; nothing was recorded.", fields=missing)
        named = {places[turn_id] for turn_id in body.source_turn_ids}
        if body.conversation_id is not None:
            named.add(body.conversation_id)
        owner = body.owner
        if len(named) != 1:
            return _FactOrigin(None, owner, body.project or NO_PROJECT, conversations=sorted(named))
        (conversation_id,) = named
        conversation = await self._conversations.get(caller, ConversationId(conversation_id))
        return _FactOrigin(
            conversation_id,
            owner or conversation.owner,
            conversation.project,
            [
                Participant(actor=participant.actor, name=participant.name, aliases=participant.aliases)
                for participant in conversation.participants
                if participant.role is None
            ],
            [conversation_id],
        )

    async def _heads(
        self, caller: Caller, tx: Transaction, place: _FactOrigin, project: str | None
    ) -> dict[UUID, LockedConversation]:
        heads = await self._sources.lock(caller, tx, conversation_ids=place.conversations)
        if len(heads) != len(place.conversations):
            raise NotFound("not_found", "There is no such conversation.")
        if project is not None and any(head.project != project for head in heads.values()):
            raise Invalid(
                "invalid_request",
                "The conversation is of another project than the fact; nothing was recorded.",
                fields=[FieldError("/project", "not the project of the conversation; leave it out")],
            )
        return heads

    async def _origins(
        self,
        caller: Caller,
        tx: Transaction,
        body: FactCreate,
        place: _FactOrigin,
        heads: Mapping[UUID, LockedConversation],
    ) -> dict[UUID | None, Origin]:
        """Lock the source turns until the transaction ends, and return the origin of each source.

        The origin of the assertion itself has the key None. Raises Conflict if a source is superseded or erased.
        """
        sources = (
            await self._sources.lock_turns(caller, tx, turn_ids=body.source_turn_ids) if body.source_turn_ids else {}
        )
        unusable = [
            FieldError(f"/source_turn_ids/{number}", "superseded or erased")
            for number, turn_id in enumerate(body.source_turn_ids)
            if turn_id not in sources
        ]
        if unusable:
            raise Conflict(
                "source_gone", "A source turn is superseded or erased; nothing was recorded.", fields=unusable
            )
        origins: dict[UUID | None, Origin] = {key: _origin(turn, heads) for key, turn in sources.items()}
        of = None if place.conversation_id is None else heads[place.conversation_id]
        origins[None] = Origin(place.conversation_id, place.project, rev=None if of is None else of.rev + 1)
        return origins


def _require_owner(body: FactCreate, place: _FactOrigin, heads: Mapping[UUID, LockedConversation]) -> None:
    """Raise Busy if the conversation got an owner after it was read: the fact must have that owner too."""
    if body.owner is not None or place.conversation_id is None:
        return
    if heads[place.conversation_id].owner != place.owner:
        raise Busy("resource_busy", "The conversation got an owner right now; send the fact again.", retry_after_s=1)


def _origin(source: LockedTurn, heads: Mapping[UUID, LockedConversation]) -> Origin:
    head = heads[source.conversation_id]
    return Origin(source.conversation_id, head.project, source.actor, source.content_hash, head.rev + 1)


def _stated(body: FactCreate, place: _FactOrigin) -> tuple[FactKey, Statement]:
    """Return the key and the statement of an assertion. Raises Invalid if it has no words, or ends before it begins."""
    actors = names_to_actors(
        (participant.actor, [name for name in (participant.name, *participant.aliases) if name])
        for participant in place.participants
    )
    subject = resolve_subject(body.subject, speaker=None, owner=place.owner, actors=actors)
    wrong = [
        FieldError(f"/{name}", "has no word that can be compared")
        for name, key in (("subject", subject), ("object", object_key(body.object)))
        if not key
    ]
    if wrong:
        raise Invalid("invalid_request", "The fact has no words to compare; nothing was recorded.", fields=wrong)
    key = FactKey(place.owner or "", subject, predicate_key(body.predicate))
    now = truncate_ms(datetime.now(UTC))
    if body.valid_to is not None and body.valid_from is None and body.valid_to <= now:
        raise Invalid(
            "invalid_request",
            "The fact ends before it begins; nothing was recorded.",
            fields=[FieldError("/valid_to", "lies before now, and no valid_from is given")],
        )
    statement = Statement(
        subject=_display_subject(body, key),
        predicate=key.predicate,
        object=" ".join(body.object.split()),
        valid_from=now if body.valid_from is None else truncate_ms(body.valid_from),
        sources=tuple(body.source_turn_ids),
        confidence=body.confidence,
        valid_to=None if body.valid_to is None else truncate_ms(body.valid_to),
        tier=body.tier,
        replaces=body.replaces,
    )
    return key, statement


def _display_subject(body: FactCreate, key: FactKey) -> str:
    """Return the subject as the caller spells it if that has the same key, else the key."""
    return " ".join(body.subject.split()) if name_key(body.subject) == key.subject else key.subject


def _merged(timeline: FactTimeline, statement: Statement, origins: Mapping[UUID | None, Origin]) -> Asserted:
    decision = timeline.merge(statement, origins)
    if decision.outcome is not Outcome.IGNORED and decision.fact_id is not None:
        return Asserted(
            decision.fact_id, decision.changed_ids, is_new=decision.outcome is Outcome.RECORDED, gained=True
        )
    fact = timeline.find(decision.fact_id) if decision.fact_id is not None else None
    fact = fact or timeline.find_stated(statement, object_key(statement.object))
    if fact is None:
        raise Conflict(
            "too_many_facts", "There are too many facts of this subject and predicate; name a predicate that says more."
        )
    if fact.retracted:
        raise Conflict("fact_retracted", "This statement was retracted; undo the retraction instead.")
    is_widened = not statement.sources and timeline.widen(fact, statement, object_key(statement.object), origins[None])
    return Asserted(fact.id, [fact.id] if is_widened else [])


def correction_statement(fact: TimelineFact, body: FactUpdate) -> Statement | None:
    """Return the statement of a correction, None if nothing changes. Raises Invalid if it ends before it begins."""
    set_fields = body.model_fields_set
    # an end that comes from another fact does not belong to this one
    own_end = fact.valid_to if fact.invalidated_by is None else None
    valid_from = truncate_ms(body.valid_from) if body.valid_from is not None else fact.valid_from
    valid_to = own_end
    if "valid_to" in set_fields:
        valid_to = None if body.valid_to is None else truncate_ms(body.valid_to)
    if valid_to is not None and valid_to <= valid_from:
        raise Invalid(
            "invalid_request",
            "The fact ends before it begins; nothing was changed.",
            fields=[
                FieldError("/valid_to" if "valid_to" in set_fields else "/valid_from", "valid_to lies after valid_from")
            ],
        )
    value = fact.object if body.object is None else " ".join(body.object.split())
    tier = body.tier or fact.tier
    confidence = fact.confidence if body.confidence is None else body.confidence
    before = (fact.object, fact.confidence, fact.tier, fact.valid_from, own_end)
    if (value, confidence, tier, valid_from, valid_to) == before:
        return None
    return Statement(
        subject=fact.subject,
        predicate=fact.predicate,
        object=value,
        valid_from=valid_from,
        sources=tuple(fact.source_turn_ids),
        confidence=confidence,
        valid_to=valid_to,
        tier=tier,
    )


def require_effect(decision: Decision) -> None:
    """Raise Invalid if a correction changed nothing: its object has no word to compare."""
    if decision.outcome is Outcome.IGNORED:
        raise Invalid(
            "invalid_request",
            "The fact has no words to compare; nothing was changed.",
            fields=[FieldError("/object", "has no word that can be compared")],
        )


async def _read(_caller: Caller, _tx: Transaction, fact_ids: Sequence[UUID]) -> Asserted:
    fact_id, *changed = fact_ids
    return Asserted(fact_id, changed)
