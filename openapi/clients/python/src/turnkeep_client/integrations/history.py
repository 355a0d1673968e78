"""The messages of one conversation, as agent frameworks keep them: append, read, take back, clear.

It is safe to call from several threads. Invariant: an append that is repeated after a failure stores nothing twice.
"""

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from turnkeep_client.client import Turnkeep
from turnkeep_client.errors import NotFoundError
from turnkeep_client.generated import types

Result = TypeVar("Result")

_MAX_TURNS: Final = 500
_MAX_BYTES: Final = 4 * 2**20
"""Of one append; the server takes 8 MiB."""
_PAGE: Final = 200


class ConversationHistory:
    """The live turns of the conversation with this `external_id`, which is created at first use."""

    def __init__(
        self,
        turnkeep: Turnkeep,
        external_id: str,
        *,
        owner: str | None = None,
        project: str | None = None,
        metadata: Mapping[str, types.JsonValue] | None = None,
    ) -> None:
        self.turnkeep, self.external_id = turnkeep, external_id
        self._owner, self._project, self._metadata = owner, project, metadata
        self._conversation_id: str | None = None
        self._unconfirmed: tuple[str, str] | None = None
        self._lock = threading.RLock()

    @property
    def conversation_id(self) -> str:
        """The id of the conversation."""
        with self._lock:
            if self._conversation_id is None:
                found = self.turnkeep.conversation(
                    self.external_id, owner=self._owner, project=self._project, metadata=self._metadata
                )
                self._conversation_id = found.id
            return self._conversation_id

    def turns(self, limit: int | None = None, *, after: int | None = None) -> list[types.Turn]:
        """Return the newest turns in chronological order, all of them without a `limit`.

        `after` leaves out the turns up to this position.
        """
        return self._in_conversation(lambda conversation_id: self._turns(conversation_id, limit, after))

    def conversation(self) -> types.Conversation:
        """Return the conversation with its metadata and counters."""
        return self._in_conversation(self.turnkeep.api.get_conversation)

    def update_metadata(self, metadata: Mapping[str, types.JsonValue]) -> None:
        """Merge metadata into that of the conversation; null removes a member."""
        body: types.ConversationUpdate = {"metadata": dict(metadata)}
        self._in_conversation(lambda conversation_id: self.turnkeep.api.update_conversation(conversation_id, body=body))

    def append(self, turns: Sequence[types.TurnInput]) -> None:
        """Append turns: all or none of each 500 turns or 4 MiB.

        If it fails, call it again with the same turns before others: what was stored already is not stored again.
        """
        if not turns:
            return
        with self._lock:
            digest = hashlib.sha256(json.dumps(turns).encode()).hexdigest()
            is_repeated = self._unconfirmed is not None and self._unconfirmed[0] == digest
            key = self._unconfirmed[1] if self._unconfirmed is not None and is_repeated else str(uuid.uuid4())
            self._unconfirmed = (digest, key)
            for number, batch in enumerate(_batches(turns)):
                self._append(batch, f"{key}-{number}")
            self._unconfirmed = None

    def pop(self) -> types.Turn | None:
        """Erase the newest turn, and return it as it was; None if there is none.

        Of several readers, each turn is returned to the one that erased it; the others go on to the next turn.
        """
        taken = self.take(lambda: self.turns(1), 1)
        return taken[0] if taken else None

    def take(self, choose: Callable[[], Sequence[types.Turn]], count: int) -> list[types.Turn]:
        """Erase up to `count` turns of those that `choose` returns, and return them.

        `choose` is called again while other readers erase its turns first.
        """
        taken: list[types.Turn] = []
        with self._lock:
            while len(taken) < count and (turns := choose()[: count - len(taken)]):
                erased = self.erase([turn["id"] for turn in turns])
                taken += [turn for turn in turns if turn["id"] in erased]
        return taken

    def erase(self, turn_ids: Sequence[str]) -> set[str]:
        """Erase turns with everything derived from them. Return the ids of those that no one had erased before."""
        erased: set[str] = set()
        with self._lock:
            for at in range(0, len(turn_ids), _PAGE):
                ids = list(turn_ids[at : at + _PAGE])
                erased.update(self.turnkeep.api.erase_turns(self.conversation_id, ids=ids)["erased"])
        return erased

    def clear(self) -> None:
        """Delete the conversation with everything derived from it. The next append creates another one."""
        with self._lock:
            self.turnkeep.api.delete_conversation(self.conversation_id)
            self._conversation_id = self._unconfirmed = None

    def _append(self, turns: list[types.TurnInput], key: str) -> None:
        body: types.Append = {"turns": turns}
        self._in_conversation(
            lambda conversation_id: self.turnkeep.api.append_turns(conversation_id, body=body, idempotency_key=key)
        )

    def _turns(self, conversation_id: str, limit: int | None, after: int | None) -> list[types.Turn]:
        found: list[types.Turn] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            page = self.turnkeep.api.list_turns(conversation_id, order="desc", after=after, limit=_PAGE, cursor=cursor)
            found += [turn for turn in page["data"] if turn["erased_at"] is None]
            if not page["has_more"]:
                break
            cursor = page["next_cursor"]
        return found[:limit][::-1]

    def _in_conversation(self, work: Callable[[str], Result]) -> Result:
        """Run with the id of the conversation; once more if another program deleted it in the meantime."""
        is_known = self._conversation_id is not None
        try:
            return work(self.conversation_id)
        except NotFoundError:
            if not is_known:
                raise
            self._conversation_id = None
            return work(self.conversation_id)


def _batches(turns: Sequence[types.TurnInput]) -> Iterator[list[types.TurnInput]]:
    batch: list[types.TurnInput] = []
    size = 0
    for turn in turns:
        added = len(json.dumps(turn, ensure_ascii=False).encode())
        if batch and (len(batch) == _MAX_TURNS or size + added > _MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(turn)
        size += added
    yield batch
