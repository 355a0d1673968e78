"""Subscriptions to the list of a tenant's conversations: changed and deleted conversations.

Invariants: a subscriber that resumes after an event of this process misses no event, or gets `reread`. A conversation
has at most one event a second. A slow subscriber does not delay the others.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple
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
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

_MAX_RECENT_EVENTS: Final = 1000
_MAX_CHANGED: Final = 1000
_MAX_EVENT_CHARACTERS: Final = 65_536
"""Size above which subscribers get `reread` for a conversation (many names, or much metadata)."""
_PAUSE_S: Final = 1.0
_DELETED: Final = "conversation.deleted"
_EVICT_AFTER_S: Final = 60.0


class ConversationUpdatedFrame(BaseModel):
    """A conversation was created or changed, with previews as in a list; sent at most once a second for each."""

    type: Literal["conversation.updated"]
    conversation: ListedConversation


class ConversationDeletedFrame(BaseModel):
    """A conversation was deleted."""

    type: Literal["conversation.deleted"]
    id: str


class RelistFrame(BaseModel):
    """Some events were lost: read the list again. The stream continues with new events."""

    type: Literal["reread"]


class ListedPlace(NamedTuple):
    """The project and the owner of a conversation."""

    project: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class ConversationListEvent:
    """An event of a list as JSON, with the id to resume after. `place`: None for all subscribers."""

    type: str
    text: str
    id: str
    place: ListedPlace | None


class ListSubscription:
    """One subscriber: call `next_events` until it returns an empty list."""

    def __init__(
        self,
        subscriptions: "ListSubscriptions",
        tenant_list: "_TenantList",
        caller: Caller,
        project: str | None,
        *,
        max_events: int,
    ) -> None:
        self._ended = False
        self._subscriptions = subscriptions
        self._tenant_list = tenant_list
        self._caller = caller
        self._project = project
        self._max_events = max_events
        self._queue: deque[ConversationListEvent] = deque()
        self._arrived = asyncio.Event()

    async def next_events(self) -> list[ConversationListEvent]:
        """Wait for events and return them; an empty list after the end."""
        while not self._queue:
            if self._ended:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        events, self._queue = list(self._queue), deque()
        return events

    def push(self, events: Sequence[ConversationListEvent]) -> None:
        """Queue the events of this subscriber's project; replace a full queue by one `reread`.

        The place of a deleted conversation is not known: with a restriction the caller gets `reread` instead.
        """
        for event in events:
            if event.place is not None:
                if self._project in {None, event.place.project} and self._caller.reaches(*event.place):
                    self._queue.append(event)
            elif event.type == _DELETED and self._caller.restriction is not None:
                self._queue.append(replace(self._tenant_list.relist(), id=event.id))
            else:
                self._queue.append(event)
        if len(self._queue) > self._max_events:
            self._queue.clear()
            self._queue.append(self._tenant_list.relist())
        self._arrived.set()

    def end(self) -> None:
        """End the subscription after the queued events."""
        self._ended = True
        self._arrived.set()

    def close(self) -> None:
        """Unsubscribe. May be called again."""
        self._subscriptions.remove(self._tenant_list, self)


class _TenantList:
    """The conversation list of a tenant: its subscribers, unpublished changes, and recent events."""

    def __init__(self, tenant_id: TenantId) -> None:
        self.tenant_id = tenant_id
        self.subscriptions: set[ListSubscription] = set()
        self.changed: dict[UUID, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.eviction: asyncio.TimerHandle | None = None
        self._name = new_uuid().hex[-12:]
        self._count = 0
        # only the last event of each conversation: an older one may contain erased text
        self._recent_events: dict[UUID | None, ConversationListEvent] = {}
        self._last_evicted = 0

    def publish(self, kind: str, text: str, *, conversation_id: UUID | None, place: ListedPlace | None) -> None:
        self._count += 1
        event = ConversationListEvent(kind, text, f"{self._name}.{self._count}", place)
        self._recent_events.pop(conversation_id, None)
        self._recent_events[conversation_id] = event
        if len(self._recent_events) > _MAX_RECENT_EVENTS:
            self._last_evicted = _number(self._recent_events.pop(next(iter(self._recent_events))))
        for subscription in self.subscriptions:
            subscription.push([event])

    def publish_relist(self) -> None:
        frame = RelistFrame(type="reread")
        self.publish(frame.type, frame.model_dump_json(), conversation_id=None, place=None)

    def relist(self) -> ConversationListEvent:
        frame = RelistFrame(type="reread")
        return ConversationListEvent("reread", frame.model_dump_json(), f"{self._name}.{self._count}", None)

    def events_after(self, last_event_id: str) -> Sequence[ConversationListEvent]:
        """Return the last event of each conversation after an event, or `reread` if it is unknown or too old."""
        name, _, number = last_event_id.partition(".")
        is_buffered = (
            name == self._name and number.isdecimal() and self._last_evicted <= int(number[:18]) <= self._count
        )
        return (
            [event for event in self._recent_events.values() if _number(event) > int(number)]
            if is_buffered
            else [self.relist()]
        )


def _publish_found(tenant_list: _TenantList, listed: ListedRows) -> None:
    """Publish changed conversations; also `reread` if one is too large for an event."""
    relists = listed.cut
    for row in listed.rows:
        frame = ConversationUpdatedFrame(type="conversation.updated", conversation=listed_view(row))
        text, conversation = frame.model_dump_json(), row.conversation
        if len(text) > _MAX_EVENT_CHARACTERS:
            relists = True
        else:
            place = ListedPlace(conversation.project, conversation.owner)
            tenant_list.publish(frame.type, text, conversation_id=conversation.id, place=place)
    if relists:
        tenant_list.publish_relist()


def _number(event: ConversationListEvent) -> int:
    return int(event.id.partition(".")[2])


class ListSubscriptions:
    """All list subscriptions of a process."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._tenant_lists: dict[TenantId, _TenantList] = {}
        self._closing = False
        self._log = get_logger()

    @property
    def count(self) -> int:
        """The number of subscribers."""
        return sum(len(tenant_list.subscriptions) for tenant_list in self._tenant_lists.values())

    def subscribe(self, caller: Caller, *, project: str | None, last_event_id: str | None) -> ListSubscription:
        """Subscribe to a project's conversations, or all that the caller reaches, after the event `last_event_id`.

        Raises Forbidden, and Unavailable while the process stops.
        """
        caller.require(Scope.READ)
        if self._closing:
            raise Unavailable("not_ready", "This server is being stopped; connect again.", retry_after_s=1)
        tenant_list = self._tenant_lists.get(caller.tenant_id)
        if tenant_list is None:
            tenant_list = self._tenant_lists[caller.tenant_id] = _TenantList(caller.tenant_id)
        if tenant_list.eviction is not None:
            tenant_list.eviction.cancel()
            tenant_list.eviction = None
        subscription = ListSubscription(
            self, tenant_list, caller, project, max_events=self._settings.live.live_queue_frames
        )
        tenant_list.subscriptions.add(subscription)
        if last_event_id is not None:
            subscription.push(tenant_list.events_after(last_event_id))
        return subscription

    def remove(self, tenant_list: _TenantList, subscription: ListSubscription) -> None:
        """Remove a subscriber; the recent events of an unused list are kept for a minute, for it to resume."""
        tenant_list.subscriptions.discard(subscription)
        if not tenant_list.subscriptions and tenant_list.eviction is None and not self._closing:
            loop = asyncio.get_running_loop()
            tenant_list.eviction = loop.call_later(_EVICT_AFTER_S, self._tenant_lists.pop, tenant_list.tenant_id, None)

    def on_message(self, event: BusEvent) -> None:
        """Handle an event; changed conversations are read together at most once a second."""
        tenant_list = self._tenant_lists.get(event.tenant_id)
        if tenant_list is None:
            return
        if event.kind == "deleted":
            tenant_list.changed.pop(event.conversation_id, None)
            frame = ConversationDeletedFrame(type=_DELETED, id=format_id(event.conversation_id))
            text = frame.model_dump_json()
            tenant_list.publish(frame.type, text, conversation_id=event.conversation_id, place=None)
        elif event.kind == "changed":
            tenant_list.changed[event.conversation_id] = None
            if tenant_list.task is None:
                tenant_list.task = asyncio.create_task(
                    self._publish_changed(tenant_list), context=contextvars.Context()
                )

    def on_loss(self) -> None:
        """Publish `reread` on every list, since messages may be lost."""
        for tenant_list in self._tenant_lists.values():
            tenant_list.changed.clear()
            tenant_list.publish_relist()

    async def _publish_changed(self, tenant_list: _TenantList) -> None:
        try:
            await self._publish_until_unchanged(tenant_list)
        finally:
            tenant_list.task = None

    async def _publish_until_unchanged(self, tenant_list: _TenantList) -> None:
        while tenant_list.changed:
            changed, tenant_list.changed = list(tenant_list.changed), {}
            if len(changed) > _MAX_CHANGED:
                tenant_list.publish_relist()
            else:
                try:
                    async with self._database.transaction(tenant_list.tenant_id, read_only=True) as tx:
                        listed = await list_store.find_listed(
                            tx, tenant_list.tenant_id, changed, max_bytes=self._settings.limits.max_answer_bytes
                        )
                except Exception as error:  # noqa: BLE001 - after any error the changes are published later
                    code = error.code if isinstance(error, AppError) else "internal_error"
                    places = {} if isinstance(error, AppError) else {"stack": error_stack(error)}
                    self._log.warning("watching.look_failed", code=code, error_type=error_type(error), **places)
                    tenant_list.changed = dict.fromkeys(changed) | tenant_list.changed
                else:
                    _publish_found(tenant_list, listed)
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """End every subscription: the process stops."""
        self._closing = True
        for tenant_list in self._tenant_lists.values():
            for handle in (tenant_list.eviction, tenant_list.task):
                if handle is not None:
                    handle.cancel()
            for subscription in list(tenant_list.subscriptions):
                subscription.end()
        self._tenant_lists.clear()
