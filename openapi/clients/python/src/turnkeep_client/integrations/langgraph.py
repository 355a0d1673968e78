"""A store of LangGraph (`pip install turnkeep-client[langgraph]`): memory across threads, searched by meaning.

What is stored where: each item is a conversation of its own in one project (`langgraph` if you name none). Its external
id is a hash of namespace and key; its metadata and its title have both in words. Its one live turn shows the indexed
text, which recall searches, and has the value beside it, exactly as given. Another `put` revises that turn, so earlier
values stay readable in the history. `delete` deletes the conversation with everything derived from it.

Checkpoints are not stored here: use this store next to any checkpointer of LangGraph.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
)

from turnkeep_client.client import Turnkeep
from turnkeep_client.errors import ConflictError, NotFoundError
from turnkeep_client.generated import types
from turnkeep_client.integrations import store_items
from turnkeep_client.paging import items

_FRAMEWORK: Final = "langgraph"
_WHOLE: Final = "$"
_ATTEMPTS: Final = 8
_PAGE: Final = 200
_MAX_HITS: Final = 200


class TurnkeepStore(BaseStore):
    """A store for `compile(store=…)` and `create_agent(store=…)`.

    `fields` are the paths of the values that are searched, by default the whole value; `index` of a `put` goes before
    them, and `index=False` keeps an item out of searches. A `put` that is repeated stores one item. Searches with a
    query return at most 200 hits; their `filter` is applied to these. There is no TTL.
    """

    __slots__ = ("_fields", "_owner", "_project", "_turnkeep")

    def __init__(
        self,
        turnkeep: Turnkeep | None = None,
        *,
        project: str = "langgraph",
        owner: str | None = None,
        fields: Sequence[str] = (_WHOLE,),
    ) -> None:
        self._turnkeep = turnkeep or Turnkeep()
        self._project, self._owner, self._fields = project, owner, tuple(fields)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run reads, then writes; of several writes of one item the last. The writes are not one transaction."""
        listed = list(ops)
        results: list[Result] = [None if isinstance(op, PutOp) else self._read(op) for op in listed]
        puts = {(op.namespace, op.key): op for op in listed if isinstance(op, PutOp)}
        for op in puts.values():
            self._put(op)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do the same in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _read(self, op: GetOp | SearchOp | ListNamespacesOp) -> Result:
        match op:
            case GetOp():
                return self._get(op)
            case SearchOp(query=str(query)) if query.strip():
                return self._search(op, query)
            case SearchOp():
                found = self._items(op.namespace_prefix)
                chosen = (item for item in found if store_items.matches(item.value, op.filter))
                return list(islice(chosen, op.offset, op.offset + op.limit))
            case ListNamespacesOp():
                return self._namespaces(op)

    def _get(self, op: GetOp) -> Item | None:
        conversation = self._conversation(op.namespace, op.key)
        return None if conversation is None else self._item(conversation)

    def _put(self, op: PutOp) -> None:
        if op.value is None:
            if (conversation := self._conversation(op.namespace, op.key)) is not None:
                self._turnkeep.api.delete_conversation(conversation["id"])
            return
        turn = store_items.turn_of_value(_FRAMEWORK, op.namespace, op.key, op.value, self._text(op))
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._write(op, turn)
            except (ConflictError, NotFoundError):  # another writer put or deleted the item in the meantime
                if not left:
                    raise
            else:
                return

    def _write(self, op: PutOp, turn: types.TurnInput) -> None:
        conversation: types.ConversationCreate = {
            "external_id": store_items.external_id_of(op.namespace, op.key),
            "project": self._project,
            "owner": self._owner,
            "title": store_items.title_of(op.namespace, op.key),
            "metadata": store_items.metadata_of(op.namespace, op.key),
        }
        found = self._turnkeep.api.create_conversation(body=conversation)
        live = self._live(found["id"])
        if live is None:
            # refused if another writer was faster: an item has one live turn
            body: types.Append = {"turns": [turn], "expected_seq": found["last_seq"]}
            self._turnkeep.api.append_turns(found["id"], body=body)
        else:
            self._turnkeep.api.revise_turn(found["id"], live["id"], body={**turn})

    def _text(self, op: PutOp) -> str:
        if op.index is False or op.value is None:
            return ""
        value = dict(op.value)
        texts: list[str] = []
        for path in self._fields if op.index is None else op.index:
            texts += [store_items.text_of_value(value)] if path == _WHOLE else get_text_at_path(value, path)
        return "\n".join(texts)

    def _search(self, op: SearchOp, query: str) -> list[SearchItem]:
        is_filtered = bool(op.filter)
        body: types.EvaluatedRecall = {
            "query": query,
            "k": _MAX_HITS if is_filtered else min(_MAX_HITS, op.offset + op.limit),
            "kinds": ["turn"],
            "project": self._project,
        }
        if op.namespace_prefix:
            body["filters"] = {"metadata": store_items.prefix_filter(op.namespace_prefix)}
        found: list[SearchItem] = []
        for hit in self._turnkeep.api.recall(body=body)["data"]:
            turn = hit["turn"] if hit["kind"] == "turn" else None
            item = None if turn is None else _item_of(turn, turn["metadata"], turn["created_at"], hit["score"])
            if item is not None and store_items.matches(item.value, op.filter):
                found.append(item)
        return found[op.offset : op.offset + op.limit]

    def _conversation(self, namespace: Sequence[str], key: str) -> types.ListedConversation | None:
        external_id = store_items.external_id_of(namespace, key)
        page = self._turnkeep.api.list_conversations(project=self._project, external_id=external_id, limit=1)
        return next(iter(page["data"]), None)

    def _items(self, prefix: Sequence[str]) -> Iterator[SearchItem]:
        """Yield the items under a prefix, last written first."""
        for conversation in self._conversations(prefix):
            if (item := self._item(conversation)) is not None:
                yield item

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found: dict[tuple[str, ...], None] = {}
        for conversation in self._conversations(()):
            place = store_items.place_of(conversation["metadata"])
            if place is not None and all(_matches(place[0], condition) for condition in conditions):
                found[place[0] if op.max_depth is None else place[0][: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]

    def _conversations(self, prefix: Sequence[str]) -> Iterator[types.ListedConversation]:
        cursor: str | None = None
        while True:
            page = self._turnkeep.api.search_conversations(
                body={
                    "project": self._project,
                    "metadata": store_items.prefix_filter(prefix),
                    "limit": _PAGE,
                    "cursor": cursor,
                }
            )
            yield from page["data"]
            if not page["has_more"]:
                return
            cursor = page["next_cursor"]

    def _item(self, conversation: types.ListedConversation) -> SearchItem | None:
        try:
            live = self._live(conversation["id"])
        except NotFoundError:  # deleted in the meantime
            return None
        return live and _item_of(live, conversation["metadata"], conversation["created_at"])

    def _live(self, conversation_id: str) -> types.Turn | None:
        turns = items(self._turnkeep.api.list_turns, conversation_id, order="desc", limit=_PAGE)
        return next((turn for turn in turns if turn["erased_at"] is None), None)


def _item_of(
    turn: types.Turn, metadata: Mapping[str, types.JsonValue], created_at: str, score: float | None = None
) -> SearchItem | None:
    place, value = store_items.place_of(metadata), store_items.value_of(_FRAMEWORK, turn)
    if place is None or value is None:
        return None
    created, updated = datetime.fromisoformat(created_at), datetime.fromisoformat(turn["created_at"])
    return SearchItem(place[0], place[1], value, created, updated, score)


def _matches(namespace: Sequence[str], condition: MatchCondition) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in {"*", name} for name, wanted in zip(part, path, strict=True))
