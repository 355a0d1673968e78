"""Runs imports as operations: each object (a conversation, the facts of a key, some memories) in its own transaction.

Invariants: an object, its counts and the place after it are stored in one transaction, so an import that is killed
continues after the last object, and nothing is half-written. A dry run does the same and rolls each object back.
"""

import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, cast

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record as record_audit
from app.core.database.transactions import Database, Transaction, row_as
from app.core.errors import Conflict, FieldError
from app.core.ids import format_id
from app.core.threads import pause_after_step
from app.formats.schemas import JsonObject, TokenCounter
from app.index.service import SearchIndex
from app.memory.facts.fact_writer import FactWriter
from app.operations.schemas import OperationStatus
from app.operations.service import OperationRun
from app.settings import Settings
from app.tenancy.schemas import job_caller
from app.tenancy.service import Tenancy
from app.transfer.conversation_writer import ConversationWriter
from app.transfer.imports import chunk_store as store
from app.transfer.imports.lines import LinePlace, StagedLines
from app.transfer.imports.memories import MemoryRestorer, key_of
from app.transfer.imports.rebuild import ConversationRebuilder
from app.transfer.imports.restore import ConversationRestorer
from app.transfer.outcomes import (
    ConversationOutcome,
    NotExactError,
    RecordRefusedError,
    RestoredConversation,
    RestoredMemory,
)
from app.transfer.records import (
    RECORD_TYPES,
    ConversationRecord,
    FactDecisionRecord,
    FactRecord,
    MemoryRecord,
    Record,
    RefusedRecord,
    SummaryRecord,
    TurnRecord,
)

_MEMORIES: Final = 100
_LISTED: Final = 100
_FIELDS: Final = 5
_ID_TAKEN: Final = frozenset({"turn_id_conflict", "conversation_conflict"})
_OF_PLACE: Final = frozenset({"chunk", "index", "done"})
_COUNTED: Final = ("restored", "existing", "remapped", "extended", "refused")


@dataclass(slots=True)
class ImportState:
    """The place of an import, and what it has counted. Stored as JSON with each object.

    `records`: stored records by type. `conversations`: by outcome. `skipped_records`: those that were not stored,
    `existing_records`: those of them that were there already. `mapping` has up to 100 conversations with a new id;
    `problems` the first 100 refused records.
    """

    chunk: int = 0
    index: int = 0
    done: int = 0
    records: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RECORD_TYPES, 0))
    conversations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    skipped_records: int = 0
    existing_records: int = 0
    problem_count: int = 0
    problems: list[JsonObject] = field(default_factory=list[JsonObject])
    mapping: list[JsonObject] = field(default_factory=list[JsonObject])

    def result(self) -> JsonObject:
        """Return the result of the operation."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_PLACE}

    @classmethod
    def read(cls, written: JsonObject | None) -> "ImportState":
        """Return the state of its JSON; a new one for None."""
        return cls() if written is None else row_as(cls, written)

    def refuse(
        self, refused: RecordRefusedError, *, kind: str, name: str | None, conversation: str | None = None
    ) -> None:
        """Record a refused line: its number, its wrong members, and the type and the id of its object.

        `conversation`: the id of the conversation of a turn, in the file.
        """
        self.problem_count += 1
        if len(self.problems) < _LISTED:
            errors: list[JsonObject] = [
                {"pointer": error.pointer, "detail": error.detail} for error in refused.fields[:_FIELDS]
            ]
            named: JsonObject = {"type": kind or None, "id": name}
            if conversation is not None:
                named["conversation"] = conversation
            self.problems.append({"line": refused.line, **named, "errors": cast("JsonObject", errors)})


class _DryRunError(Exception):
    """Raised at the end of an object of a dry run, so that its transaction is rolled back."""

    def __init__(self, place: LinePlace) -> None:
        super().__init__()
        self.place = place


async def _next_of(lines: StagedLines, types: Container[str], *, is_first: bool) -> tuple[int, Record] | None:
    """Return the next line and its record, without taking it; None if the group of these types ends before it.

    A refused record ends the group. Raises RecordRefusedError if it is the first one.
    """
    line = await lines.peek()
    if line is None or lines.type_of(line[1]) not in types:
        return None
    try:
        return line[0], lines.read(*line)
    except RecordRefusedError:
        if is_first:
            raise
        return None


def _name_of(record: ConversationRecord | FactRecord | FactDecisionRecord | MemoryRecord) -> str | None:
    """Return the id of an object in the file."""
    external_id = record.external_id if isinstance(record, ConversationRecord | MemoryRecord) else None
    return external_id or (None if record.id is None else format_id(record.id))


def _raise_if_dry_run(run: OperationRun, lines: StagedLines) -> None:
    if run.parameters.get("dry_run"):
        raise _DryRunError(lines.place)


class ImportRunner:
    """Runs imports."""

    def __init__(
        self,
        database: Database,
        writer: ConversationWriter,
        *,
        fact_writer: FactWriter,
        tenancy: Tenancy,
        index: SearchIndex,
        counter: TokenCounter,
        settings: Settings,
    ) -> None:
        self._database = database
        self._quotas = tenancy.quotas
        limits, options = settings.limits, settings.conversations
        self._restorer = ConversationRestorer(writer, limits=limits)
        self._rebuilder = ConversationRebuilder(writer, index=index, counter=counter, limits=limits, options=options)
        self._memory = MemoryRestorer(writer=fact_writer, index=index, tenancy=tenancy)
        self._settings = settings

    async def run(self, run: OperationRun) -> None:
        """Store objects until the import is complete or a pause is due. Raises RateLimited, which ends the attempt."""
        while not run.has_ended:
            began = time.monotonic()
            if not run.parameters.get("dry_run"):
                self._quotas.require(run.caller)
            if not await self._attempt(run, self._exactly):
                await self._attempt(run, self._under_new_ids)
            if run.pause_is_due and not run.has_ended:
                return
            await pause_after_step(began)

    async def stop(self, run: OperationRun, tx: Transaction, status: OperationStatus) -> JsonObject:
        """Delete the lines of an import that failed or was cancelled; return its counts so far."""
        del status
        return await self._end(run, tx, ImportState.read(run.state))

    async def _attempt(self, run: OperationRun, store_conversation: "_StoreConversation") -> bool:
        """Store the next object. Return false if the conversation cannot keep its ids; then nothing is changed."""
        state = ImportState.read(run.state)
        try:
            async with self._database.transaction(run.tenant_id) as tx:
                lines = self._lines(run, tx, state)
                if await lines.peek() is None:
                    await run.succeed(tx, result=await self._end(run, tx, state))
                    return True
                await self._store_next(run, tx, lines, state, store_conversation)
                state.done += lines.taken
                _raise_if_dry_run(run, lines)
                await self._checkpoint(run, tx, lines.place, state)
        except NotExactError:
            return False
        except Conflict as error:
            if error.code not in _ID_TAKEN:
                raise
            return False  # another request has stored an object with one of the ids meanwhile
        except RecordRefusedError as refused:
            await self._skip(run, refused)
        except _DryRunError as dry:
            async with self._database.transaction(run.tenant_id) as tx:
                await self._checkpoint(run, tx, dry.place, state)
        return True

    def _lines(self, run: OperationRun, tx: Transaction, state: ImportState) -> StagedLines:
        place = LinePlace(state.chunk, state.index)
        left = int(str(run.parameters["records"])) - state.done
        depth = self._settings.requests.max_json_depth
        return StagedLines(tx, run.tenant_id, run.id, place, left=left, depth=depth)

    async def _checkpoint(self, run: OperationRun, tx: Transaction, place: LinePlace, state: ImportState) -> None:
        state.chunk, state.index = place.chunk, place.index
        total = int(str(run.parameters.get("records") or 0))
        await run.checkpoint(tx, done=state.done, total=total, state=asdict(state))

    async def _skip(self, run: OperationRun, refused: RecordRefusedError) -> None:
        """Leave out the object that has the refused record, with all its records."""
        state = ImportState.read(run.state)
        async with self._database.transaction(run.tenant_id) as tx:
            lines = self._lines(run, tx, state)
            first = await lines.peek()
            kind = "" if first is None else lines.type_of(first[1])
            name = None if first is None else lines.name_of(first[1])
            lines.skip()
            if kind == "conversation":
                await lines.skip_children()
                state.conversations["refused"] += 1
            else:
                while (next_line := await lines.peek()) is not None and next_line[0] <= refused.line:
                    lines.skip()
            state.refuse(refused, kind=kind, name=name)
            state.skipped_records += lines.taken
            state.done += lines.taken
            await self._checkpoint(run, tx, lines.place, state)

    async def _store_next(
        self,
        run: OperationRun,
        tx: Transaction,
        lines: StagedLines,
        state: ImportState,
        store_conversation: "_StoreConversation",
    ) -> None:
        next_line = await lines.peek()
        if next_line is None:
            return
        number, line = next_line
        record = lines.read(number, line)
        match record:
            case ConversationRecord():
                lines.skip()
                restored = await store_conversation(run, tx, record, number, lines)
                await self._count_conversation(lines, state, record, restored)
            case FactRecord() | FactDecisionRecord():
                await self._store_facts(run, tx, lines, state, record)
            case MemoryRecord():
                await self._store_memories(run, tx, lines, state)
            case RefusedRecord():
                lines.skip()
                state.skipped_records += 1
                state.conversations["refused"] += record.kind == "conversation"
                place = RecordRefusedError(number, [FieldError(record.pointer, record.detail)])
                state.refuse(
                    place, kind=record.kind, name=record.external_id, conversation=record.conversation_external_id
                )
            case TurnRecord() | SummaryRecord():
                raise RecordRefusedError(number, [FieldError("/type", "no conversation is before it")])

    async def _exactly(
        self, run: OperationRun, tx: Transaction, record: ConversationRecord, number: int, lines: StagedLines
    ) -> RestoredConversation:
        if run.parameters.get("is_foreign"):
            raise NotExactError
        return await self._restorer.restore(
            job_caller(run.tenant_id), tx, record, number, lines.children(record, is_foreign=False)
        )

    async def _under_new_ids(
        self, run: OperationRun, tx: Transaction, record: ConversationRecord, number: int, lines: StagedLines
    ) -> RestoredConversation:
        is_foreign = bool(run.parameters.get("is_foreign"))
        children = lines.children(record, is_foreign=is_foreign)
        return await self._rebuilder.rebuild(
            job_caller(run.tenant_id), tx, record, number, children, is_foreign=is_foreign
        )

    async def _count_conversation(
        self, lines: StagedLines, state: ImportState, record: ConversationRecord, restored: RestoredConversation
    ) -> None:
        await lines.skip_children()
        is_new = restored.outcome in {ConversationOutcome.RESTORED, ConversationOutcome.REMAPPED}
        refused = sorted([*lines.refused, *restored.refused], key=lambda turn: turn.line)
        if is_new and refused and not restored.turns:
            raise refused[0]  # nothing of it can be stored
        for turn in refused:
            state.refuse(turn, kind="turn", name=turn.name, conversation=_name_of(record))
        state.conversations[restored.outcome.value] += 1
        state.records["conversation"] += is_new
        state.records["turn"] += restored.turns
        state.records["summary"] += restored.summaries
        left_out = lines.taken - restored.turns - restored.summaries - is_new
        state.skipped_records += left_out
        if restored.outcome in {ConversationOutcome.EXISTING, ConversationOutcome.EXTENDED}:
            state.existing_records += left_out - len(refused)
        if restored.conversation_id != record.id and len(state.mapping) < _LISTED:
            state.mapping.append(
                {
                    "id": None if record.id is None else format_id(record.id),
                    "stored_id": format_id(restored.conversation_id),
                }
            )

    async def _store_facts(
        self,
        run: OperationRun,
        tx: Transaction,
        lines: StagedLines,
        state: ImportState,
        first: FactRecord | FactDecisionRecord,
    ) -> None:
        key = key_of(first)
        group: list[tuple[int, FactRecord | FactDecisionRecord]] = []
        while (next_record := await _next_of(lines, {"fact", "fact_decision"}, is_first=not group)) is not None:
            number, record = next_record
            if not isinstance(record, FactRecord | FactDecisionRecord) or key_of(record) != key:
                break
            lines.skip()
            group.append((number, record))
            if len(group) > self._settings.limits.max_turns_per_append * 10:
                raise RecordRefusedError(number, [FieldError("", "a key has too many facts")])
        stored = await self._memory.restore_facts(job_caller(run.tenant_id), tx, group)
        self._count(state, stored, group)

    async def _store_memories(self, run: OperationRun, tx: Transaction, lines: StagedLines, state: ImportState) -> None:
        group: list[tuple[int, MemoryRecord]] = []
        while (
            len(group) < _MEMORIES
            and (next_record := await _next_of(lines, {"memory"}, is_first=not group)) is not None
        ):
            number, record = next_record
            lines.skip()
            if isinstance(record, MemoryRecord):
                group.append((number, record))
        stored = await self._memory.restore_memories(job_caller(run.tenant_id), tx, group)
        self._count(state, stored, group)

    @staticmethod
    def _count(
        state: ImportState,
        stored: RestoredMemory,
        group: Sequence[tuple[int, FactRecord | FactDecisionRecord | MemoryRecord]],
    ) -> None:
        state.records["fact"] += stored.facts
        state.records["fact_decision"] += stored.decisions
        state.records["memory"] += stored.memories
        state.skipped_records += stored.left_out
        for refused in stored.refused:
            record = next(record for line, record in group if line == refused.line)
            state.refuse(refused, kind=record.type, name=_name_of(record))
        state.existing_records += stored.existing

    async def _end(self, run: OperationRun, tx: Transaction, state: ImportState) -> JsonObject:
        await store.delete_chunks(tx, run.tenant_id, run.id)
        counts = {kind: count for kind, count in state.records.items() if count}
        record_audit(tx, job_caller(run.tenant_id), Action.IMPORT_END, ObjectKind.IMPORT, run.id, counts=counts)
        return {"dry_run": bool(run.parameters.get("dry_run"))} | state.result()


_StoreConversation = Callable[
    [OperationRun, Transaction, ConversationRecord, int, StagedLines], Awaitable[RestoredConversation]
]
