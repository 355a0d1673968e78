"""The turn lifecycle: the calls of an agent before and after each turn of its model.

A session is a conversation with the session's id as its external id. Invariants: a turn is stored exactly once, because
its ids are derived from its names; the first body is kept. A turn that was answered `ok` is durable. A context never
counts more tokens than allowed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from app.agents.lifecycle.counters import LifecycleCounters
from app.agents.lifecycle.items import (
    Item,
    query_of,
    read_items,
    refusal,
    sanitised_in,
    turn_inputs,
    upcoming_turns,
)
from app.agents.lifecycle.maintenance import Maintenance
from app.agents.lifecycle.memory_tree import MemoryTreeReader
from app.agents.lifecycle.operation_tokens import PreparedOperation, read_operation, sign_operation
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
from app.agents.lifecycle.turn_ids import TurnKey, append_input, append_output, append_whole
from app.context.schemas import Context, ContextRequest, SemanticRecall
from app.context.service import Compactor, ContextBuilder
from app.conversations.schemas.sessions import IdempotentAppend, Session
from app.conversations.service import Conversations, Sessions, Summaries
from app.core.database.transactions import Database
from app.core.errors import FieldError, Invalid, InvalidFields
from app.core.ids import ConversationId, format_id
from app.core.jobs import JobQueue, NewJob
from app.core.telemetry import get_logger, plain_name
from app.formats.schemas import Format, JsonObject
from app.governance.service import Governance
from app.memory.service import FactService
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

COMPACT_EARLY_JOB: Final = "session.compact"
"""Job that summarises a session with contexts near their limit; the subject is its conversation."""

_OPERATION_TTL: Final = timedelta(minutes=15)
"""Time for the agent's own model to answer between the two calls of a turn; the API promises it."""
_MAX_QUERY: Final = 10_000
_BUDGET: Final = "budget_too_small"
_TO_PREPARE: Final = ("session_id", "user_id", "turn_id", "current_input")
_ONLY_TO_PREPARE: Final = tuple(BeforeTurn.model_fields)


class Lifecycle:
    """Public API of the turn lifecycle."""

    def __init__(
        self,
        database: Database,
        *,
        conversations: Conversations,
        sessions: Sessions,
        summaries: Summaries,
        contexts: ContextBuilder,
        compactor: Compactor,
        governance: Governance,
        facts: FactService,
        queue: JobQueue,
        secret: bytes,
        settings: Settings,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._contexts = contexts
        self._queue = queue
        self._secret = secret
        self._settings = settings.lifecycle
        self._max_items = settings.limits.max_turns_per_append
        self._search_limit = settings.context.search_limit
        recent_items = settings.lifecycle.recent_context_items
        self._tree_reader = MemoryTreeReader(
            conversations=conversations,
            sessions=sessions,
            summaries=summaries,
            facts=facts,
            recent_items=recent_items,
        )
        self._maintenance = Maintenance(
            sessions=sessions,
            summaries=summaries,
            compactor=compactor,
            governance=governance,
            facts=facts,
            settings=settings.lifecycle,
        )
        self.counters = LifecycleCounters(facts.written, compactor.made.total, compactor.refused)
        """Counters of this process."""
        self._log = get_logger()

    @property
    def max_input_tokens(self) -> int:
        """Return the budget of a turn that names none."""
        return self._settings.max_input_tokens

    async def before_turn(self, caller: Caller, *, request: BeforeTurn) -> TurnContext:
        """Return the model's input: the session's context and the current input, within `max_input_tok`.

        Stores nothing. Raises Invalid, with `budget_too_small` and the smallest sufficient budget; Conflict
        `conversation_owned`; Forbidden if the caller may not read the requested memories.
        """
        with self.counters.counted("before_turn"):
            caller.require(Scope.READ)
            return await self._context(caller, request, self._read(request))

    async def after_turn(self, caller: Caller, *, request: AfterTurn) -> TurnDone:
        """Store a turn exactly once: a repeat finds the stored turn, and the first body is kept.

        Raises Invalid and TooLarge by the rules of items; Conflict `conversation_owned`; Busy if the session stays
        locked by another writer: send the request again.
        """
        with self.counters.counted("after_turn"):
            caller.require(Scope.WRITE)
            max_items, user = self._max_items, request.user_id
            inputs = read_items(request.input_items, root="/input_items", user_id=user, maximum=max_items)
            left = max_items - len(inputs)
            outputs = read_items(request.output_items, root="/output_items", user_id=user, maximum=left)
            items = [*inputs, *outputs]
            if not items:
                raise refusal("/output_items", "a turn needs items, in input_items or output_items")
            key = _key(caller, request)
            await self._store(caller, key, append_whole(key, turn_inputs(items), inputs=len(inputs)), owner=user)
            return TurnDone(ok=True, sanitised=sanitised_in(items))

    async def run_turn(self, caller: Caller, *, request: RunTurn) -> TurnPrepared | TurnDone:
        """Store a turn's input and return its context with a token; with the token, store the output.

        Raises as `before_turn` and `after_turn` do; Invalid `operation_token_invalid`, `operation_token_expired`.
        """
        with self.counters.counted("run_turn"):
            caller.require(Scope.READ)
            caller.require(Scope.WRITE)
            if request.operation_token is not None:
                return await self._end(caller, request, request.operation_token)
            return await self._prepare(caller, _preparing(request))

    async def maintenance(self, caller: Caller, *, request: SessionRequest) -> Maintained:
        """Run due compaction, retention, expiry of facts and better summaries of a session.

        Raises NotFound; Busy if another writer has the session; the errors of the chat model. May be sent again.
        """
        with self.counters.counted("maintenance"):
            return Maintained(ok=True, counts=await self._maintenance.run(caller, request=request))

    async def tree(self, caller: Caller, *, request: TreeRequest) -> Tree:
        """Return nodes of a session's memory, with a line about each. Raises Invalid, NotFound."""
        with self.counters.counted("tree"):
            return await self._tree_reader.tree(caller, request=request)

    async def read(self, caller: Caller, *, project: str, session_id: str, path: str) -> NodeText:
        """Return one node of a session's memory, as text. Raises Invalid, NotFound."""
        with self.counters.counted("read"):
            return await self._tree_reader.read(caller, project=project, session_id=session_id, path=path)

    async def compact_early(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Summarise a session early. Called by a job; raises NotFound if the session was deleted."""
        await self._maintenance.compact_early(caller, conversation_id)

    # before

    def _read(self, request: BeforeTurn) -> list[Item]:
        if not request.current_input:
            raise refusal("/current_input", "at least one item")
        return read_items(
            request.current_input, root="/current_input", user_id=request.user_id, maximum=self._max_items
        )

    async def _context(self, caller: Caller, request: BeforeTurn, items: Sequence[Item]) -> TurnContext:
        """Return the context before a turn, whether its input is already stored or not."""
        key, owner = _key(caller, request), request.user_id
        session = await self._sessions.find(caller, name=key.session_name(owner), turn_ids=key.first_item_ids())
        wanted, upcoming = self._wanted(request, items), upcoming_turns(items)
        try:
            if session is None:
                context = await self._contexts.first(
                    caller, request=wanted, upcoming=upcoming, project=request.project, owner=owner
                )
            else:
                context = await self._contexts.build(
                    caller,
                    session.conversation_id,
                    request=wanted,
                    upcoming=upcoming,
                    before=session.position,
                    newest=self._settings.recent_context_items,
                )
        except Invalid as error:
            raise _about_input(error) from None
        if session is not None:
            await self._compact_if_large(caller, session, context)
        system: list[JsonObject] = []
        if wanted.system is not None:
            system = [{"type": "message", "role": "system", "content": wanted.system}]
        return TurnContext(
            input_items=[*system, *context.messages],
            recall_fact_ids=context.included.fact_ids,
            context_token_count=context.usage.used,
            gap=context.gap,
        )

    def _wanted(self, request: BeforeTurn, items: Sequence[Item]) -> ContextRequest:
        instructions = request.base_instructions
        return ContextRequest(
            token_budget=request.max_input_tok or self._settings.max_input_tokens,
            query=query_of(items, maximum=_MAX_QUERY),
            semantic_recall=SemanticRecall(k=self._search_limit),
            include_facts=True,
            include_memories=request.include_memories,
            filter_participants=None,
            system=instructions if instructions is not None and instructions.strip() else None,
            agent_id=request.agent_id,
            format=Format.OPENAI_RESPONSES,
        )

    async def _compact_if_large(self, caller: Caller, session: Session, context: Context) -> None:
        """Enqueue a job that summarises older turns, unless the caller may only read."""
        if context.usage.used <= self._settings.compact_threshold * context.usage.budget:
            return
        if Scope.WRITE not in caller.scopes or session.unsummarised_turns <= self._maintenance.early_turns:
            return
        subject = session.conversation_id
        job = NewJob(COMPACT_EARLY_JOB, subject_ids=[subject], dedupe_key=str(subject))
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._queue.enqueue(tx, caller.tenant_id, [job])

    # after

    async def _store(
        self, caller: Caller, key: TurnKey, append_request: IdempotentAppend, *, owner: str | None = None
    ) -> None:
        name = key.session_name(owner)
        stored = await self._sessions.append_to_session(caller, name=name, append_request=append_request)
        if stored.differs:
            self.counters.conflicts += 1
        self._log.info(
            "lifecycle.stored",
            conversation_id=stored.conversation_id,
            project=plain_name(key.project),
            session_id=plain_name(key.session_id),
            turn_id=plain_name(key.turn_id),
            count=stored.count,
            status="conflict" if stored.differs else "ok",
        )

    async def _prepare(self, caller: Caller, request: BeforeTurn) -> TurnPrepared:
        """Build the context before storing, so that a refused request stores nothing."""
        items, key = self._read(request), _key(caller, request)
        context = await self._context(caller, request, items)
        await self._store(caller, key, append_input(key, turn_inputs(items)), owner=request.user_id)
        expires_at = datetime.now(UTC).replace(microsecond=0) + _OPERATION_TTL
        operation = PreparedOperation(
            tenant=format_id(caller.tenant_id),
            project=key.project,
            session=key.session_id,
            turn=key.turn_id,
            asked=len(items),
            exp=int(expires_at.timestamp()),
        )
        return TurnPrepared(
            **context.model_dump(),
            operation_token=sign_operation(self._secret, operation),
            expires_at=expires_at,
            sanitised=sanitised_in(items),
        )

    async def _end(self, caller: Caller, request: RunTurn, token: str) -> TurnDone:
        # clients that send all fields of a schema send null for unused ones
        unexpected = [name for name in _ONLY_TO_PREPARE if getattr(request, name) is not None]
        if unexpected:
            raise refusal(f"/{unexpected[0]}", "is given by operation_token; leave it out")
        operation = read_operation(self._secret, token, tenant_id=caller.tenant_id, now=datetime.now(UTC))
        if not request.output_items:
            raise refusal("/output_items", "at least one item")
        items = read_items(request.output_items, root="/output_items", user_id=None, maximum=self._max_items)
        key = TurnKey(caller.tenant_id, operation.project, operation.session, operation.turn)
        await self._store(caller, key, append_output(key, turn_inputs(items), inputs=operation.asked))
        return TurnDone(ok=True, sanitised=sanitised_in(items))


def _key(caller: Caller, request: BeforeTurn | AfterTurn) -> TurnKey:
    return TurnKey(caller.tenant_id, request.project, request.session_id, request.turn_id)


def _preparing(request: RunTurn) -> BeforeTurn:
    """Return a request to prepare a turn. Raises Invalid with the missing fields."""
    names = [name for name in _TO_PREPARE if getattr(request, name) is None]
    missing = [FieldError(f"/{name}", "is required to prepare a turn") for name in names]
    if request.output_items is not None:
        missing.append(FieldError("/operation_token", "is required with output_items"))
    if missing:
        raise InvalidFields(missing)
    return BeforeTurn.model_construct(
        None,
        **{name: value for name in _ONLY_TO_PREPARE if (value := getattr(request, name)) is not None},
    )


def _about_input(error: Invalid) -> Invalid:
    """Return a context's error with the field names of a turn."""
    if error.code != _BUDGET:
        return error
    fields = [FieldError("/max_input_tok", field.detail) for field in error.fields]
    detail = "max_input_tok is too small for the instructions and the current input."
    return Invalid(_BUDGET, detail, fields=fields, extra=error.extra)
