"""Follow a response by its id: the events so far, and those to come while it is in progress.

Any process follows any response: the text so far comes from the rows, and the rest from the changes of the
conversation. The events are those of the stream that generates the response, with the same numbers.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Final, cast

from app.agents.generation.call_deltas import Delta
from app.agents.generation.responses.events import ResponseEvents, deltas_of, stored_events
from app.agents.generation.responses.view import head_of, state_of
from app.conversations.live.service import Frame, Subscription
from app.conversations.schemas.responses import StoredResponse
from app.conversations.service import ResponseService
from app.core.errors import Unavailable
from app.core.ids import TurnId, parse_id
from app.formats.schemas import JsonObject
from app.tenancy.schemas import Caller

_READ_FRAMES: Final = frozenset({"snapshot", "turn.delta", "turn.committed", "turn.aborted", "turn.erased"})


class FollowedResponse:
    """The events of a stored response, from the rows and, while it is in progress, from its conversation's changes."""

    def __init__(
        self,
        responses: ResponseService,
        caller: Caller,
        stored: StoredResponse,
        subscription: Subscription | None,
        *,
        after: int | None,
    ) -> None:
        self._responses = responses
        self._caller = caller
        self._stored = stored
        self._subscription = subscription
        self.last = -1 if after is None else after
        """The number of the last event."""

    def close(self) -> None:
        """End the subscription. May be called again."""
        if self._subscription is not None:
            self._subscription.close()

    async def events(self) -> AsyncGenerator[JsonObject]:
        """Yield the events after the number."""
        async for event in self._all():
            number = event["sequence_number"]
            if isinstance(number, int) and number > self.last:
                self.last = number
                yield event

    async def _all(self) -> AsyncGenerator[JsonObject]:
        if self._subscription is None:
            for event in stored_events(head_of(self._stored), self._stored.answer):
                yield event
            return
        events, growing = ResponseEvents(head_of(self._stored)), _GrowingAnswer(self._stored.answer.id)
        for event in events.begin():
            yield event
        while not growing.has_ended and (frames := await self._subscription.next_frames()):
            for frame in frames:
                for event in events.add(growing.read(frame)):
                    yield event
        # the rest of the answer, and its end, are read from its row
        ended = await self._responses.get(self._caller, TurnId(parse_id(self._stored.answer.id)))
        state = state_of(ended.answer)
        if state.status == "in_progress":
            raise Unavailable("overloaded", "This reader is too slow; follow the response again.", retry_after_s=1)
        rest = growing.rest(deltas_of(state.output))
        for event in [*events.add(rest), *events.end(state, model=ended.answer.model)]:
            yield event


class _GrowingAnswer:
    """The text of an open turn, from the frames of its conversation."""

    def __init__(self, turn_id: str) -> None:
        self.has_ended = False
        self._turn_id = turn_id
        self._lengths: dict[str, int] = {}

    def read(self, frame: Frame) -> list[Delta]:
        """Return what a frame adds to the answer."""
        if frame.type not in _READ_FRAMES or self.has_ended:
            return []
        members: JsonObject = json.loads(frame.text)
        match frame.type:
            case "snapshot":
                return self._snapshot(members)
            case "turn.delta" if members["turn_id"] == self._turn_id:
                return self._added(str(members["part"]), int(str(members["offset"])), str(members["delta"]))
            case "turn.committed":
                turn = members["turn"]
                self.has_ended = isinstance(turn, dict) and turn["id"] == self._turn_id
            case "turn.aborted" | "turn.erased":
                self.has_ended = members["turn_id"] == self._turn_id
            case _:
                pass
        return []

    def rest(self, whole: Sequence[Delta]) -> list[Delta]:
        """Return what is missing of the whole answer."""
        return [added for delta in whole for added in self._added(delta.part, 0, delta.text)]

    def _snapshot(self, members: JsonObject) -> list[Delta]:
        for open_turn in cast("list[JsonObject]", members["pending"]):
            if cast("JsonObject", open_turn["turn"])["id"] == self._turn_id:
                parts = cast("list[dict[str, str]]", open_turn["parts"])
                return [added for part in parts for added in self._added(part["part"], 0, part["text"])]
        self.has_ended = not members["more"]
        return []

    def _added(self, part: str, offset: int, text: str) -> list[Delta]:
        length = self._lengths.get(part, 0)
        new = text[max(0, length - offset) :]
        self._lengths[part] = length + len(new)
        return [Delta(part, new)] if new else []
