"""The turn lifecycle: what an agent calls before and after each turn of its model.

A session is a conversation that has the session's id as its external id. What always holds: a turn is stored exactly
once, whoever sends it how often, since its ids follow from its names; the first body stands. What was answered `ok` is
durable. A context never counts more than was allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from app.agents.lifecycle.counters import Figures
from app.agents.lifecycle.items import Item, in_items, question_of, read_items, refusal, to_show, to_store
from app.agents.lifecycle.maintenance import Maintenance
from app.agents.lifecycle.memory_tree import Browser
from app.agents.lifecycle.operation_tokens import Operation, read_operation, sign_operation
from app.agents.lifecycle.schemas import (
    AfterTurn,
    BeforeTurn,
    Maintained,
    NodeText,
    RunTurn,
    SessionRequest,
    Tree,
    TreeRequest,
    TurnContext,
    TurnDone,
    TurnPrepared,
)
from app.agents.lifecycle.turn_ids import Answered, Asked, TurnKey, Whole
from app.context.schemas import Context, ContextRequest, SemanticRecall
from app.context.service import Compactor, ContextBuilder
from app.conversations.schemas.sessions import IdempotentAppend, Session, SessionName, Stored
from app.conversations.service import Conversations
from app.core.database.transactions import Database
from app.core.errors import FieldError, Invalid, TooLarge
from app.core.ids import ConversationId
from app.core.jobs import JobQueue, NewJob
from app.core.telemetry import get_logger, plain_name
from app.formats.schemas import Format, JsonObject
from app.governance.service import Governance
from app.memory.service import Facts
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

__all__ = ["COMPACT_EARLY_JOB", "Lifecycle", "LifecycleOptions"]

COMPACT_EARLY_JOB: Final = "session.compact"
"""Summarise a session whose contexts come near what a model takes; the subject is its conversation."""

_MAX_QUERY: Final = 10_000
_BUDGET: Final = "budget_too_small"
_TO_PREPARE: Final = ("session_id", "user_id", "turn_id", "current_input")
_ONLY_TO_PREPARE: Final = (
    "project", *_TO_PREPARE, "base_instructions", "max_input_tok", "include_memories", "agent_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LifecycleOptions:
    """Settings of the turn lifecycle."""

    recent_items: int
    search_limit: int
    max_input_tokens: int
    compact_threshold: float
    min_age_hours: int
    operation_ttl_s: int
    max_items: int

    @classmethod
    def of(cls, settings: Settings) -> "LifecycleOptions":
        """Take them out of the settings."""
        return cls(
            recent_items=settings.recent_context_items,
            search_limit=settings.search_limit,
            max_input_tokens=settings.max_input_tokens,
            compact_threshold=settings.compact_threshold,
            min_age_hours=settings.compaction_min_age_hours,
            operation_ttl_s=settings.operation_ttl_s,
            max_items=settings.max_turns_per_append,
        )


class Lifecycle:
    """The door to the turn lifecycle."""

    def __init__(
        self,
        database: Database,
        *,
        conversations: Conversations,
        contexts: ContextBuilder,
        compactor: Compactor,
        governance: Governance,
        facts: Facts,
        queue: JobQueue,
        secret: bytes,
        options: LifecycleOptions,
    ) -> None:
        self._database = database
        self._sessions = conversations.sessions
        self._contexts = contexts
        self._queue = queue
        self._secret = secret
        self._options = options
        self._browser = Browser(conversations=conversations, facts=facts, recent_items=options.recent_items)
        self._maintenance = Maintenance(
            conversations=conversations,
            compactor=compactor,
            governance=governance,
            facts=facts,
            recent_items=options.recent_items,
            min_age_hours=options.min_age_hours,
        )
        self.figures = Figures(facts.written, lambda: compactor.made)
        """What this process has counted."""
        self._log = get_logger()

    async def before_turn(self, caller: Caller, *, request: BeforeTurn) -> TurnContext:
        """What to send to the model: the session's context and the current input, within `max_input_tok`.

        Stores nothing. Raises Invalid, with `budget_too_small` and the smallest that works; Conflict
        `session_owner_mismatch`; Forbidden where memories are wanted that are not for this caller.
        """
        with self.figures.counted("before_turn"):
            caller.require(Scope.READ)
            context, _ = await self._context(caller, request, self._read(request))
            return context

    async def after_turn(self, caller: Caller, *, request: AfterTurn) -> TurnDone:
        """Store a turn, once for ever: a repeat finds it, and what was stored first stands.

        Raises Invalid and TooLarge by the rules of items; Conflict `session_owner_mismatch`; Busy where the session is
        being written to for longer than a moment: send it again.
        """
        with self.figures.counted("after_turn"):
            caller.require(Scope.WRITE)
            most, user = self._options.max_items, request.user_id
            asked = read_items(request.input_items, root="/input_items", user_id=user, maximum=most)
            answered = read_items(request.output_items, root="/output_items", user_id=user, maximum=most - len(asked))
            if not asked and not answered:
                raise refusal("/output_items", "a turn has items, in input_items or here")
            key = TurnKey(caller.tenant_id, request.project, request.session_id, request.turn_id)
            ids = Whole(key, asked=len(asked), answered=len(answered))
            name = SessionName(request.project, request.session_id, request.user_id)
            append_request = IdempotentAppend(to_store([*asked, *answered]), ids.look_for(), ids.choose)
            await self._store(caller, name, request.turn_id, append_request)
            return TurnDone(ok=True)

    async def run_turn(self, caller: Caller, *, request: RunTurn) -> TurnPrepared | TurnDone:
        """The first call stores a turn's input and gives its context with a token; the second stores the answer.

        Raises as `before_turn` and `after_turn` do; Invalid `operation_token_invalid`, `operation_token_expired`.
        """
        with self.figures.counted("run_turn"):
            caller.require(Scope.READ)
            caller.require(Scope.WRITE)
            if request.operation_token is not None:
                return await self._end(caller, request, request.operation_token)
            return await self._prepare(caller, _preparing(request))

    async def maintenance(self, caller: Caller, *, request: SessionRequest) -> Maintained:
        """Compaction, retention, the end of facts and better summaries, as far as they are due in a session.

        Raises NotFound; Busy where somebody writes to the session; and as the chat model does. May be sent again.
        """
        with self.figures.counted("maintenance"):
            return Maintained(ok=True, counts=await self._maintenance.run(caller, request=request))

    async def tree(self, caller: Caller, *, request: TreeRequest) -> Tree:
        """Places in a session's memory, with a line about each. Raises Invalid, NotFound."""
        with self.figures.counted("tree"):
            return await self._browser.tree(caller, request=request)

    async def read(self, caller: Caller, *, project: str, session_id: str, path: str) -> NodeText:
        """One place in a session's memory, as text. Raises Invalid, NotFound."""
        with self.figures.counted("read"):
            return await self._browser.read(caller, project=project, session_id=session_id, path=path)

    async def compact_early(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Make the contexts of a session smaller. Run by a job; NotFound where it is gone."""
        await self._maintenance.compact_early(caller, conversation_id)

    # before

    def _read(self, request: BeforeTurn) -> list[Item]:
        if not request.current_input:
            raise refusal("/current_input", "at least one item")
        return read_items(
            request.current_input, root="/current_input", user_id=request.user_id, maximum=self._options.max_items
        )

    async def _context(
        self, caller: Caller, request: BeforeTurn, items: Sequence[Item]
    ) -> tuple[TurnContext, Session | None]:
        """The context of a turn as it is before it, whether its input is stored already or not."""
        key = TurnKey(caller.tenant_id, request.project, request.session_id, request.turn_id)
        name = SessionName(request.project, request.session_id, request.user_id)
        session = await self._sessions.find(caller, name=name, turn_ids=key.first())
        wanted, upcoming = self._wanted(request, items), to_show(items)
        try:
            if session is None:
                context = await self._contexts.first(
                    caller, request=wanted, upcoming=upcoming, project=request.project, owner=request.user_id
                )
            else:
                context = await self._contexts.build(
                    caller,
                    session.conversation_id,
                    request=wanted,
                    upcoming=upcoming,
                    before=session.position,
                    newest=self._options.recent_items,
                )
        except Invalid as error:
            raise _about_input(error) from None
        if session is not None:
            await self._compact_if_large(caller, session, context)
        system: list[JsonObject] = []
        if wanted.system is not None:
            system = [{"type": "message", "role": "system", "content": wanted.system}]
        found = TurnContext(
            input_items=[*system, *context.messages],
            recall_fact_ids=context.included.fact_ids,
            context_token_count=context.usage.used,
            gap=context.gap,
        )
        return found, session

    def _wanted(self, request: BeforeTurn, items: Sequence[Item]) -> ContextRequest:
        said = request.base_instructions
        return ContextRequest(
            token_budget=request.max_input_tok or self._options.max_input_tokens,
            query=question_of(items, maximum=_MAX_QUERY),
            semantic_recall=SemanticRecall(k=self._options.search_limit),
            include_facts=True,
            include_memories=request.include_memories,
            filter_participants=None,
            system=said if said is not None and said.strip() else None,
            agent_id=request.agent_id,
            format=Format.OPENAI_RESPONSES,
        )

    async def _compact_if_large(self, caller: Caller, session: Session, context: Context) -> None:
        """Let a job summarise older turns. Who may only read changes nothing, and spends no model's tokens."""
        if context.usage.used <= self._options.compact_threshold * context.usage.budget:
            return
        if Scope.WRITE not in caller.scopes or session.unsummarised_turns <= self._maintenance.early_turns:
            return
        subject = session.conversation_id
        job = NewJob(COMPACT_EARLY_JOB, subject_ids=[subject], dedupe_key=str(subject))
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._queue.enqueue(tx, caller.tenant_id, [job])

    # after

    async def _store(self, caller: Caller, name: SessionName, turn_id: str, append_request: IdempotentAppend) -> Stored:
        try:
            stored = await self._sessions.append_once(caller, name=name, append_request=append_request)
        except (Invalid, TooLarge) as error:
            raise in_items(error) from None
        if stored.differs:
            self.figures.conflicts += 1
        self._log.info(
            "lifecycle.stored",
            conversation_id=stored.conversation_id,
            project=plain_name(name.project),
            session_id=plain_name(name.external_id),
            turn_id=plain_name(turn_id),
            count=stored.count,
            status="conflict" if stored.differs else "ok",
        )
        return stored

    async def _prepare(self, caller: Caller, request: BeforeTurn) -> TurnPrepared:
        """Context first, so that what is refused has stored nothing; what is answered has stored all."""
        items = self._read(request)
        context, _ = await self._context(caller, request, items)
        key = TurnKey(caller.tenant_id, request.project, request.session_id, request.turn_id)
        ids = Asked(key, asked=len(items))
        name = SessionName(request.project, request.session_id, request.user_id)
        await self._store(caller, name, request.turn_id, IdempotentAppend(to_store(items), ids.look_for(), ids.choose))
        expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=self._options.operation_ttl_s)
        operation = Operation(
            caller.tenant_id, request.project, request.session_id, request.turn_id, len(items), expires_at
        )
        return TurnPrepared(
            **context.model_dump(), operation_token=sign_operation(self._secret, operation), expires_at=expires_at
        )

    async def _end(self, caller: Caller, request: RunTurn, token: str) -> TurnDone:
        # a client that fills in all members of a schema says null for those that it leaves out
        given = [one for one in _ONLY_TO_PREPARE if getattr(request, one) is not None]
        if given:
            raise refusal(f"/{given[0]}", "is of the turn that operation_token names; leave it out")
        operation = read_operation(self._secret, token, tenant_id=caller.tenant_id, now=datetime.now(UTC))
        if not request.output_items:
            raise refusal("/output_items", "at least one item")
        most = self._options.max_items
        items = read_items(request.output_items, root="/output_items", user_id=None, maximum=most)
        key = TurnKey(caller.tenant_id, operation.project, operation.session_id, operation.turn_id)
        ids = Answered(key, asked=operation.asked, answered=len(items))
        name = SessionName(operation.project, operation.session_id)
        append_request = IdempotentAppend(to_store(items), ids.look_for(), ids.choose, create=False)
        await self._store(caller, name, operation.turn_id, append_request)
        return TurnDone(ok=True)


def _preparing(request: RunTurn) -> BeforeTurn:
    """A request to prepare a turn. Raises Invalid naming what is missing."""
    missing = [FieldError(f"/{name}", "is required to prepare a turn") for name in _TO_PREPARE
               if getattr(request, name) is None]  # fmt: skip
    if request.output_items is not None:
        missing.append(FieldError("/operation_token", "is required with output_items"))
    if missing:
        raise Invalid("invalid_request", "The request breaks a rule; nothing was stored.", fields=missing)
    return BeforeTurn.model_construct(
        None,
        **{name: value for name in _ONLY_TO_PREPARE if (value := getattr(request, name)) is not None},
    )


def _about_input(error: Invalid) -> Invalid:
    """The error of a context in the words of a turn."""
    if error.code != _BUDGET:
        return error
    fields = [FieldError("/max_input_tok", one.detail) for one in error.fields]
    return Invalid(_BUDGET, "max_input_tok does not hold the instructions and the current input.", fields=fields,
                   extra=error.extra)  # fmt: skip
