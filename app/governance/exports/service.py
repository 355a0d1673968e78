"""Exports: streams of lines, read in pages of one transaction each.

Invariants: a page is bounded in rows and bytes, so an export needs the same memory for any amount of data. The lines
depend on the data alone. A cursor has the place, the running hash and the counts, so that an export continues after any
checkpoint, in any process.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import AuditTrail
from app.conversations.schemas.records import ConversationPlace
from app.conversations.service import ConversationExporter
from app.core.database.transactions import Database, Transaction
from app.core.errors import FieldError, Invalid
from app.core.ids import ConversationId, TenantId, format_id
from app.core.paging import Cursors
from app.core.times import format_time
from app.formats.schemas import JsonObject
from app.governance.exports.places import ExportPlace
from app.governance.exports.records import FORMAT, VERSION, ExportDigest, ScopeKind, write_line
from app.governance.schemas import ExportCreate, ExportOptions
from app.memory.service import FactService
from app.tenancy.schemas import Caller, Scope

_CONVERSATIONS = 50
_PAGE_RECORDS = 500
_PAGE_BYTES = 2 * 2**20
_INLINE_RECORDS = 50


@dataclass(frozen=True, slots=True)
class _ExportSubject:
    """The scope of one export."""

    kind: ScopeKind
    tenant_id: TenantId
    conversation_id: UUID | None = None
    project: str | None = None

    def header(self) -> JsonObject:
        """Return the scope as the header shows it."""
        members: JsonObject = {"kind": self.kind.value}
        if self.conversation_id is not None:
            members["conversation_id"] = format_id(self.conversation_id)
        if self.project is not None:
            members["project"] = self.project
        return members

    def name(self) -> str:
        """Return the name of the list, for its cursors."""
        return f"exports|{self.tenant_id}|{self.kind.value}|{self.conversation_id}|{self.project!r}"


@dataclass(slots=True)
class _RecordPage:
    """The records of one page, and the approximate size of their texts."""

    records: list[JsonObject] = field(default_factory=list[JsonObject])
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Return whether the page needs no more records."""
        return len(self.records) >= _PAGE_RECORDS or self.size >= _PAGE_BYTES


class Exports:
    """Public API of exports. Needs the scope `read`; a project or the tenant also needs `admin`."""

    def __init__(
        self, database: Database, *, conversations: ConversationExporter, facts: FactService,
        audit: AuditTrail, cursors: Cursors,
    ) -> None:  # fmt: skip
        self._database = database
        self._conversations = conversations
        self._facts = facts.exporter
        self._audit = audit
        self._cursors = cursors

    async def export_conversation(
        self, caller: Caller, conversation_id: ConversationId, *, options: ExportOptions
    ) -> AsyncIterator[bytes]:
        """Return the lines of one conversation. Raises NotFound; Invalid `cursor_invalid`."""
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await self._conversations.require(caller, tx, conversation_id)
        subject = _ExportSubject(ScopeKind.CONVERSATION, caller.tenant_id, conversation_id=conversation_id)
        return self._start(caller, subject, options)

    async def export(self, caller: Caller, *, body: ExportCreate) -> AsyncIterator[bytes]:
        """Return the lines of a project or of the tenant. Raises Forbidden; Invalid `cursor_invalid`."""
        caller.require(Scope.READ)
        caller.require(Scope.ADMIN)
        kind = ScopeKind.TENANT if body.project is None else ScopeKind.PROJECT
        return self._start(caller, _ExportSubject(kind, caller.tenant_id, project=body.project), body)

    def _start(self, caller: Caller, subject: _ExportSubject, options: ExportOptions) -> AsyncIterator[bytes]:
        place = ExportPlace()
        if options.cursor is not None:
            key = self._cursors.read(subject.name(), options.cursor)
            try:
                place = ExportPlace.read(key)
            except (ValueError, IndexError) as error:
                detail = "This cursor is of another release; start the export again without it."
                problem = FieldError("/cursor", "a cursor is valid for the release that returned it")
                raise Invalid("cursor_invalid", detail, fields=[problem]) from error
        return self._lines(caller, subject, place, options)

    async def _lines(
        self, caller: Caller, subject: _ExportSubject, place: ExportPlace, options: ExportOptions
    ) -> AsyncIterator[bytes]:
        digest = ExportDigest(place.hash, place.counts)
        before = sum(digest.counts.values())
        try:
            if options.cursor is None:
                created_at = options.created_at or datetime.now(UTC)
                yield write_line(_header(subject, created_at)) + b"\n"
            while place.phase != "end":
                async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=True) as tx:
                    records, place = await self._page(tx, subject, place)
                lines = await _written(records, digest)
                place = replace(place, hash=digest.value, counts=dict(digest.counts))
                if lines:
                    yield lines
                if options.checkpoints and place.phase != "end":
                    yield self._checkpoint(subject, place)
            yield write_line(digest.trailer()) + b"\n"
        finally:
            counts = {"records": sum(digest.counts.values()) - before}
            kind = None if subject.conversation_id is None else ObjectKind.CONVERSATION
            self._audit.record_read(
                caller, Action.EXPORT_READ, kind, subject.conversation_id,
                conversation_id=subject.conversation_id, counts=counts,
            )  # fmt: skip

    def _checkpoint(self, subject: _ExportSubject, place: ExportPlace) -> bytes:
        cursor = self._cursors.write(subject.name(), place.written())
        return write_line({"type": "checkpoint", "cursor": cursor}) + b"\n"

    async def _page(
        self, tx: Transaction, subject: _ExportSubject, place: ExportPlace
    ) -> tuple[list[JsonObject], ExportPlace]:
        match place.phase:
            case "conversations":
                return await self._conversation_page(tx, subject, place)
            case "facts":
                page = await self._facts.read_facts(
                    tx, subject.tenant_id, conversation_id=subject.conversation_id, project=subject.project,
                    after=place.after,
                )  # fmt: skip
                next_phase = "memories" if subject.kind is ScopeKind.TENANT else "end"
                return list(page.records), place.moved("facts", page.after) if page.after else place.moved(next_phase)
            case _:
                page = await self._facts.read_memories(tx, subject.tenant_id, after=place.after)
                return list(page.records), place.moved("memories", page.after) if page.after else place.moved("end")

    async def _conversation_page(
        self, tx: Transaction, subject: _ExportSubject, place: ExportPlace
    ) -> tuple[list[JsonObject], ExportPlace]:
        """Return the rest of the present conversation, and further ones while the page has room."""
        page = _RecordPage()
        if place.inside is not None:
            inside = await self._fill(tx, subject, place.inside, page)
            if inside is not None or page.is_full:
                return page.records, place.moved("conversations", place.after).within(inside)
        found = await self._conversations.list_conversations(
            tx, subject.tenant_id, conversation_id=subject.conversation_id, project=subject.project,
            after=place.after, limit=_CONVERSATIONS,
        )  # fmt: skip
        for record, start in found:
            page.records.append(record)
            inside = await self._fill(tx, subject, start, page)
            place = place.moved("conversations", start.conversation_id).within(inside)
            if page.is_full:
                return page.records, place
        return page.records, place if len(found) == _CONVERSATIONS else place.moved("facts")

    async def _fill(
        self, tx: Transaction, subject: _ExportSubject, inside: ConversationPlace | None, page: _RecordPage
    ) -> ConversationPlace | None:
        """Add records of a conversation until the page is full. Return the place after them; None at the end."""
        while inside is not None and not page.is_full:
            part = await self._conversations.read(tx, subject.tenant_id, inside)
            page.records += part.records
            page.size += part.size
            inside = part.place
        return inside


def _header(subject: _ExportSubject, created_at: datetime) -> JsonObject:
    return {
        "type": "header",
        "format": FORMAT,
        "version": VERSION,
        "scope": subject.header(),
        "created_at": format_time(created_at),
    }


async def _written(records: list[JsonObject], digest: ExportDigest) -> bytes:
    """Return records as lines, and add them to the digest."""

    def write() -> bytes:
        lines: list[bytes] = []
        for record in records:
            line = write_line(record)
            digest.add(str(record["type"]), line)
            lines.append(line + b"\n")
        return b"".join(lines)

    return write() if len(records) <= _INLINE_RECORDS else await asyncio.to_thread(write)
