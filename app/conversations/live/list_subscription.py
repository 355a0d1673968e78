"""Watches the list of a tenant's conversations: which of them changed, and which are gone.

What always holds: a watcher that goes on after an event of this process misses none, or is told to read the list again;
a conversation is told of at most once a second; whoever does not read slows nobody.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel

from app.conversations.events import BusEvent
from app.conversations.schemas.conversations import ListedConversation
from app.conversations.stores import list_store
from app.conversations.stores.list_store import ListedRows
from app.conversations.views import listed_view
from app.core.database.transactions import Database
from app.core.errors import AppError, Unavailable
from app.core.ids import TenantId, format_id, new_uuid
from app.core.telemetry import error_stack, error_type, get_logger
from app.tenancy.schemas import Caller, Scope

_REMEMBERED: Final = 1000
_MAX_CHANGED: Final = 1000
_MAX_EVENT_CHARACTERS: Final = 65_536
"""Of a larger conversation (it has many names, or much metadata) watchers are told to read the list again."""
_PAUSE_S: Final = 1.0
_KEEP_S: Final = 60.0


class ConversationUpdatedFrame(BaseModel):
    """A conversation was created or has changed, with previews as in a list; sent at most once a second for each."""

    type: Literal["conversation.updated"]
    conversation: ListedConversation


class ConversationDeletedFrame(BaseModel):
    """A conversation is gone."""

    type: Literal["conversation.deleted"]
    id: str


class RelistFrame(BaseModel):
    """Some events were missed: read the list again. What happens from now on follows."""

    type: Literal["reread"]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a list, as JSON, and the id to go on after."""

    type: str
    text: str
    id: str
    project: str | None


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Settings of watching."""

    queue_frames: int
    read_bytes: int


class ListSubscription:
    """What one watcher is sent: `batch` until it gives nothing."""

    def __init__(self, watcher: "Watcher", watched: "_Watched", project: str | None, most: int) -> None:
        self._ended = False
        self._watcher = watcher
        self._watched = watched
        self._project = project
        self._most = most
        self._queue: deque[Event] = deque()
        self._arrived = asyncio.Event()

    async def batch(self) -> list[Event]:
        """The next events, when there are some; none when there will be none any more."""
        while not self._queue:
            if self._ended:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        events, self._queue = list(self._queue), deque()
        return events

    def push(self, events: Sequence[Event]) -> None:
        """Queue events of this watcher's project; where they are too many, all that it needs is to read again."""
        for event in events:
            if event.project is None or self._project is None or event.project == self._project:
                self._queue.append(event)
        if len(self._queue) > self._most:
            self._queue.clear()
            self._queue.append(self._watched.relist())
        self._arrived.set()

    def end(self) -> None:
        """Tell the watcher that nothing more comes."""
        self._ended = True
        self._arrived.set()

    def close(self) -> None:
        """Watch no more. May be called again."""
        self._watcher.forget(self._watched, self)


class _Watched:
    """A tenant's list: who watches it, what has changed since it was told, and what was told lately."""

    def __init__(self, tenant_id: TenantId) -> None:
        self.tenant_id = tenant_id
        self.watches: set[ListSubscription] = set()
        self.changed: dict[UUID, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.forgetting: asyncio.TimerHandle | None = None
        self._name = new_uuid().hex[-12:]
        self._count = 0
        # the last event of each conversation: an older one may show what has been erased since
        self._lately: dict[UUID | None, Event] = {}
        self._forgotten = 0

    def tell(self, kind: str, text: str, *, conversation_id: UUID | None, project: str | None) -> None:
        self._count += 1
        event = Event(kind, text, f"{self._name}.{self._count}", project)
        self._lately.pop(conversation_id, None)
        self._lately[conversation_id] = event
        if len(self._lately) > _REMEMBERED:
            self._forgotten = _number(self._lately.pop(next(iter(self._lately))))
        for watch in self.watches:
            watch.push([event])

    def tell_relist(self) -> None:
        frame = RelistFrame(type="reread")
        self.tell(frame.type, frame.model_dump_json(), conversation_id=None, project=None)

    def relist(self) -> Event:
        frame = RelistFrame(type="reread")
        return Event("reread", frame.model_dump_json(), f"{self._name}.{self._count}", None)

    def since(self, last: str) -> Sequence[Event]:
        """What has happened after an event, once for each conversation, or that the list has to be read again."""
        name, _, number = last.partition(".")
        known = name == self._name and number.isdecimal() and self._forgotten <= int(number[:18]) <= self._count
        return [event for event in self._lately.values() if _number(event) > int(number)] if known else [self.relist()]


def _tell_found(watched: _Watched, found: ListedRows) -> None:
    """Tell of conversations that have changed; where one is too large for an event, the list is to be read again."""
    relists = found.cut
    for row in found.rows:
        frame = ConversationUpdatedFrame(type="conversation.updated", conversation=listed_view(row))
        text, one = frame.model_dump_json(), row.conversation
        if len(text) > _MAX_EVENT_CHARACTERS:
            relists = True
        else:
            watched.tell(frame.type, text, conversation_id=one.id, project=one.project)
    if relists:
        watched.tell_relist()


def _number(event: Event) -> int:
    return int(event.id.partition(".")[2])


class Watcher:
    """The door for who watches lists: one for each process."""

    def __init__(self, database: Database, *, options: WatchOptions) -> None:
        self._database = database
        self._options = options
        self._watched: dict[TenantId, _Watched] = {}
        self._closing = False
        self._log = get_logger()

    @property
    def watches(self) -> int:
        """How many watch now."""
        return sum(len(watched.watches) for watched in self._watched.values())

    def watch(self, caller: Caller, *, project: str | None, last: str | None) -> ListSubscription:
        """Watch a project's conversations, or all of the tenant's; `last` is the id of the event to go on after."""
        caller.require(Scope.READ)
        if self._closing:
            raise Unavailable("not_ready", "This server is being stopped; connect again.", retry_after_s=1)
        watched = self._watched.get(caller.tenant_id)
        if watched is None:
            watched = self._watched[caller.tenant_id] = _Watched(caller.tenant_id)
        if watched.forgetting is not None:
            watched.forgetting.cancel()
            watched.forgetting = None
        watch = ListSubscription(self, watched, project, self._options.queue_frames)
        watched.watches.add(watch)
        if last is not None:
            watch.push(watched.since(last))
        return watch

    def forget(self, watched: _Watched, watch: ListSubscription) -> None:
        """Take a watcher away; what was told is remembered for a while, for it to come back."""
        watched.watches.discard(watch)
        if not watched.watches and watched.forgetting is None and not self._closing:
            loop = asyncio.get_running_loop()
            watched.forgetting = loop.call_later(_KEEP_S, self._watched.pop, watched.tenant_id, None)

    def hear(self, told: BusEvent) -> None:
        """Take a message: what changed is read a moment later, together."""
        watched = self._watched.get(told.tenant_id)
        if watched is None:
            return
        if told.what == "deleted":
            watched.changed.pop(told.conversation_id, None)
            frame = ConversationDeletedFrame(type="conversation.deleted", id=format_id(told.conversation_id))
            watched.tell(frame.type, frame.model_dump_json(), conversation_id=told.conversation_id, project=None)
        elif told.what == "changed":
            watched.changed[told.conversation_id] = None
            if watched.task is None:
                watched.task = asyncio.create_task(self._tell_changed(watched), context=contextvars.Context())

    def on_loss(self) -> None:
        """Messages may have been missed: every list is to be read again."""
        for watched in self._watched.values():
            watched.changed.clear()
            watched.tell_relist()

    async def _tell_changed(self, watched: _Watched) -> None:
        try:
            await self._tell_until_quiet(watched)
        finally:
            watched.task = None

    async def _tell_until_quiet(self, watched: _Watched) -> None:
        while watched.changed:
            changed, watched.changed = list(watched.changed), {}
            if len(changed) > _MAX_CHANGED:
                watched.tell_relist()
            else:
                try:
                    async with self._database.transaction(watched.tenant_id, read_only=True) as tx:
                        found = await list_store.find_listed(
                            tx, watched.tenant_id, changed, max_bytes=self._options.read_bytes
                        )
                except Exception as error:  # noqa: BLE001 - whatever it is, what has changed is told later
                    code = error.code if isinstance(error, AppError) else "internal_error"
                    places = {} if isinstance(error, AppError) else {"stack": error_stack(error)}
                    self._log.warning("watching.look_failed", code=code, error_type=error_type(error), **places)
                    watched.changed = dict.fromkeys(changed) | watched.changed
                else:
                    _tell_found(watched, found)
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """End every watch: the process is being stopped."""
        self._closing = True
        for watched in self._watched.values():
            for handle in (watched.forgetting, watched.task):
                if handle is not None:
                    handle.cancel()
            for watch in list(watched.watches):
                watch.end()
        self._watched.clear()
