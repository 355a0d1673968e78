"""The store of langgraph beside the store in memory that langgraph has itself."""

import asyncio
import threading
from typing import Any

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.langgraph import TurnkeepStore

PUTS = [
    PutOp(("users", "mia"), "food", {"text": "I am allergic to peanuts.", "rank": 1, "id": 12345678901234567890}),
    PutOp(("users", "mia"), "home", {"text": "I live in Lisbon.", "rank": 2, "tags": ["city", None]}),
    PutOp(("users", "mia", "work"), "job", {"text": "I repair trams.", "rank": 3}),
    PutOp(("users", "bob"), "food", {"text": "I love peanuts.", "rank": 4}),
    PutOp(("notes",), "a / key with 'everything' \u2028", {"text": "", "rank": 5}),
]
READS = [
    GetOp(("users", "mia"), "food"),
    GetOp(("users", "mia"), "none"),
    SearchOp(("users", "mia")),
    SearchOp(()),
    SearchOp(("users",), filter={"rank": {"$gte": 2, "$lt": 4}}),
    SearchOp(("users",), filter={"text": "I love peanuts."}),
    ListNamespacesOp(),
    ListNamespacesOp(max_depth=1),
    ListNamespacesOp(match_conditions=(MatchCondition("prefix", ("users", "*", "work")),)),
    ListNamespacesOp(match_conditions=(MatchCondition("suffix", ("mia",)),)),
]


def plain(result: Any) -> Any:
    """What of a result does not depend on the time and the order."""
    if isinstance(result, Item):
        return result.namespace, result.key, result.value
    return sorted(map(plain, result), key=str) if isinstance(result, list) else result


def compare(ours: TurnkeepStore, theirs: InMemoryStore) -> None:
    stored = theirs._data  # noqa: SLF001 - it lists namespaces that have no items any more
    for namespace in [namespace for namespace, kept in stored.items() if not kept]:
        del stored[namespace]
    for op in READS:
        assert plain(ours.batch([op])) == plain(theirs.batch([op])), op


async def main() -> None:
    turnkeep, theirs = Turnkeep(), InMemoryStore()
    ours = TurnkeepStore(turnkeep, project="check-store")
    assert await ours.abatch(PUTS) == await theirs.abatch(PUTS) == [None] * len(PUTS)
    compare(ours, theirs)
    changes = [
        PutOp(("users", "mia"), "home", {"text": "I moved to Porto.", "rank": 9.5}),
        PutOp(("users", "bob"), "food", None),
        PutOp(("users", "bob"), "none", None),
    ]
    ours.batch(changes), theirs.batch(changes)
    (
        ours.put(("users", "bob"), "food", {"text": "Again.", "rank": 4}),
        theirs.put(("users", "bob"), "food", {"text": "Again.", "rank": 4}),
    )
    ours.delete(("notes",), PUTS[4].key), theirs.delete(("notes",), PUTS[4].key)
    compare(ours, theirs)

    found = await ours.asearch(("users", "mia"), query="Which food must I avoid?", limit=1)
    assert [(one.key, one.namespace) for one in found] == [("food", ("users", "mia"))]
    assert found[0].score is not None
    assert found[0].value == PUTS[0].value
    assert "I live in Lisbon." not in str(ours.search((), query="Lisbon")), "an earlier value is not found"
    assert [one.key for one in ours.search(("users",), query="food", filter={"rank": 3})] == ["job"]
    two = ours.search(("users", "mia"), query="Which food must I avoid?", limit=2)
    assert [one.key for one in ours.search(("users", "mia"), query="Which food must I avoid?", limit=1, offset=1)] == [
        two[1].key
    ]
    ours.put(("hidden",), "h", {"text": "zebra"}, index=False)
    ours.put(("shown",), "s", {"text": "zebra", "other": "giraffe"}, index=["other"])
    assert ours.get(("hidden",), "h").value == {"text": "zebra"}
    assert [one.key for one in ours.search((), query="giraffe", limit=1)] == ["s"]
    assert ours.search(("hidden",), query="zebra") == []

    before = ours.get(("users", "mia"), "food")
    ours.put(("users", "mia"), "food", {"text": "No peanuts, no nuts."})
    after = ours.get(("users", "mia"), "food")
    assert before.created_at == after.created_at < before.updated_at < after.updated_at

    def write(number: int) -> None:
        ours.put(("race",), "one", {"number": number})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ours.search(("race",))) == 1


asyncio.run(main())
