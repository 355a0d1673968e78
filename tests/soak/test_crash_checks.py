"""The checks of the crash proof find what they are there for: a check never seen to fail proves nothing."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.soak.checks import check_chain, check_commits, check_ledger, check_rows, hashes, ulid
from tests.soak.clients import Operation

_NOW = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)


def _world() -> tuple[list[Operation], list[dict[str, Any]]]:
    """Two operations of two turns each, and their rows, all as it should be."""
    operations: list[Operation] = []
    table: list[dict[str, Any]] = []
    link = bytes(32)
    for number in (1, 2):
        turns: list[dict[str, Any]] = []
        for part in (0, 1):
            turn_id, seq = UUID(int=number * 10 + part), len(table) + 1
            metadata = {"client": 0, "op": number, "part": part, "of": 2}
            turns.append({"id": str(turn_id), "content": f"said {seq}", "metadata": metadata})
            row = dict.fromkeys(("tool_calls", "tool_call_id", "tool_results", "usage", "model", "adapter")) | {
                "id": turn_id, "seq": seq, "position": seq, "rev": number, "role": "user", "kind": "user_message",
                "actor": "a", "content": json.dumps(f"said {seq}"), "metadata": json.dumps(metadata),
                "occurred_at": _NOW, "created_at": _NOW, "salt": bytes(32), "status": "committed",
                "superseded_by": None, "index_state": "indexed",
            }  # fmt: skip
            row["content_hash"], link = hashes(row, link)
            table.append(row | {"chain_hash": link})
        operation = Operation(0, number, turns, 0, None, None, b"", state="acknowledged")
        operation.places = [(ulid(row["id"]), row["seq"], row["chain_hash"].hex()) for row in table[-2:]]
        operations.append(operation)
    return operations, table


def _findings(operations: list[Operation], table: list[dict[str, Any]]) -> list[str]:
    served = [
        {
            "id": ulid(row["id"]),
            "seq": row["seq"],
            "position": row["position"],
            "content": json.loads(row["content"]),
            "metadata": json.loads(row["metadata"]),
            "chain_hash": row["chain_hash"].hex(),
        }
        for row in table
    ]
    return [*check_ledger(operations, served), *check_rows(table, served), *check_chain(table), *check_commits(table)]


def _change(seq: int, **values: Any) -> Callable[[list[Operation], list[dict[str, Any]]], None]:
    return lambda _operations, table: table[seq - 1].update(values)


def test_nothing_is_found_where_all_is_well() -> None:
    assert _findings(*_world()) == []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda _operations, table: table.pop(), "is not there whole and once"),
        (lambda _operations, table: table.pop(0), "seq is not 1..3"),
        (lambda _operations, table: table.__delitem__(slice(2, 4)), "is lost"),
        (lambda _operations, table: table.append(table[3] | {"id": UUID(int=99), "seq": 5}), "is there 2 times"),
        (lambda operations, _table: setattr(operations[1], "state", "refused"), "is there"),
        (lambda operations, _table: operations.pop(), "turns of nobody"),
        (_change(2, content='"forged"'), "the content hash of seq 2 does not match"),
        (_change(2, salt=b"\1" * 32), "the content hash of seq 2 does not match"),
        (_change(3, created_at=_NOW.replace(hour=9), occurred_at=_NOW.replace(hour=9)), "the chain breaks at seq 3"),
        (_change(3, chain_hash=bytes(32)), "was acknowledged at seq 3"),
        (_change(3, rev=1), "revision 1 is not exactly one operation"),
        (_change(3, index_state="pending"), "seq 3 is committed, pending"),
        (lambda operations, _table: operations[0].places.__setitem__(0, ("x", 1, "")), "was acknowledged at seq 1"),
    ],
)
def test_damage_is_found(damage: Callable[[list[Operation], list[dict[str, Any]]], object], sentence: str) -> None:
    operations, table = _world()
    damage(operations, table)
    assert any(sentence in found for found in _findings(operations, table))
