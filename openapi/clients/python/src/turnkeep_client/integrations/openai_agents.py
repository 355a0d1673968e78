"""A session of the OpenAI Agents SDK (`pip install turnkeep-client[openai-agents]`).

Each item is one turn of the conversation, so people, recall and contexts read the session like any other conversation.
"""

import asyncio
from collections.abc import Mapping
from typing import cast

from agents import SessionSettings, TResponseInputItem
from agents.memory import SessionABC

from turnkeep_client.client import Turnkeep
from turnkeep_client.integrations.history import ConversationHistory
from turnkeep_client.integrations.response_items import items_of_turn, turn_of_item


class TurnkeepSession(SessionABC):
    """A session whose items are the turns of the conversation with the external id `session_id`.

    `Runner.run(agent, "…", session=TurnkeepSession("trip", Turnkeep(), owner="mia"))`. `add_items` called again after a
    failure stores nothing twice. `pop_item` erases the newest turn; `clear_session` deletes the conversation.
    """

    def __init__(
        self,
        session_id: str,
        turnkeep: Turnkeep | None = None,
        *,
        owner: str | None = None,
        project: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._history = ConversationHistory(turnkeep or Turnkeep(), session_id, owner=owner, project=project)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest `limit` items in chronological order; all of them without a limit."""
        settings = self.session_settings or SessionSettings()
        limit = settings.limit if limit is None else limit
        if limit is not None and limit <= 0:
            return []
        turns = await asyncio.to_thread(self._history.turns, limit)
        items = [item for turn in turns for item in items_of_turn(turn)]
        return cast("list[TResponseInputItem]", items if limit is None else items[-limit:])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items."""
        turns = [turn_of_item(cast("Mapping[str, object]", item)) for item in items]
        await asyncio.to_thread(self._history.append, turns)

    async def pop_item(self) -> TResponseInputItem | None:
        """Erase the newest turn, and return its item. Of a turn of another program all is erased."""
        turn = await asyncio.to_thread(self._history.pop)
        items = [] if turn is None else items_of_turn(turn)
        return cast("TResponseInputItem", items[-1]) if items else None

    async def clear_session(self) -> None:
        """Delete the conversation with everything derived from it."""
        await asyncio.to_thread(self._history.clear)
