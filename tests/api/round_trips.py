"""The messages that each hot path sends to Postgres, each one a round trip.

`test_statements` compares them with what is sent, and `scripts/reference` makes the table of the page from them. They
are as `first_words` gives them. The commit of a transaction that only reads is left out: no answer waits for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """A request as a reader knows it, and its messages in their order."""

    request: str
    messages: list[str]


READ: Final = ["begin", "select"]
"""A transaction of one statement that only reads."""
_INSERTS: Final = ["insert into turns", "insert into index_entries", "insert into vectors"]
_HEAD: Final = "update conversation_heads set"
_END: Final = "insert into audit_unsealed; commit"
"""The entry of the audit goes with the commit, in one message."""

ROUND_TRIPS: Final[Mapping[str, RoundTrips]] = {
    "append": RoundTrips("append 1 to 500 turns", [*READ, *_INSERTS, _HEAD, _END]),
    "append_jobs": RoundTrips(
        "… if jobs are due: dates, compaction, late vectors", [*READ, *_INSERTS, "insert into jobs", _HEAD, _END]
    ),
    "append_ids": RoundTrips("… if turn ids were given", [*READ, "select", *_INSERTS, _HEAD, _END]),
    "append_key": RoundTrips(
        "… with an `Idempotency-Key`",
        [
            *READ, "commit",
            *READ, "select", "select", *_INSERTS, _HEAD, "insert into idempotency_records", _END,
        ],
    ),
    "append_repeated": RoundTrips("… the same again with this key", [*READ, "select", "commit"]),
    "recall": RoundTrips("recall, entries in memory", [*READ, "select", *READ]),
    "recall_long": RoundTrips("… with hits on long turns", [*READ, "select", *READ, "select"]),
    "conversation": RoundTrips("read a conversation", READ),
    "conversation_key": RoundTrips("… if the key is not cached", [*READ, *READ]),
    "history": RoundTrips("page of a history", [*READ, "select"]),
    "history_unchanged": RoundTrips("… `since_rev` without news", READ),
    "list": RoundTrips("page of a list of conversations", ["begin", "with"]),
    "context": RoundTrips("context", [*READ, "select"]),
    "context_recall": RoundTrips("… with recall, nothing new to load", [*READ, "select", *READ]),
    "context_gap": RoundTrips("… with recall and a gap", [*READ, "select", *READ, "select", *READ]),
    "context_memories": RoundTrips("… with memories", [*READ, "select", *READ, "select"]),
    "after_turn": RoundTrips("store a turn of a session", [*READ, "select", *_INSERTS, _HEAD, _END]),
    "after_turn_repeated": RoundTrips("… the same again", [*READ, "select", "commit"]),
    "before_turn": RoundTrips(
        "begin a turn of a session", [*READ, *READ, "select", *READ, *READ, *READ, "select"]
    ),
    "memory": RoundTrips(
        "store a memory",
        [
            *READ, "update memories m", "insert into memories", "insert into index_entries", "insert into vectors",
            _END,
        ],
    ),
    "memory_stored": RoundTrips(
        "… that is stored already", [*READ, "update memories m", "update index_entries set", _END]
    ),
    "memory_search": RoundTrips("search memories, with a new one to load", [*READ, "select", "select"]),
}  # fmt: skip
"""By a name of ours. A request that begins with `…` is a case of the one before it."""
