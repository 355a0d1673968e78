"""What must hold after any number of kills: asked of the API, and of the tables themselves past every policy.

The hash chain is walked by an implementation of its own, written from the description in
`app/conversations/hash_chain.py` and sharing no code with it.
"""

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg

from tests.soak.clients import NEVER, Operation, World, read

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_HASHED = ("content", "tool_calls", "tool_results", "usage", "metadata")  # JSON columns that the content hash covers
_PLAIN = ("role", "kind", "actor", "tool_call_id", "model", "adapter")

Row = dict[str, Any]


def ulid(value: UUID) -> str:
    """26 characters of Crockford base 32."""
    return "".join(_CROCKFORD[(value.int >> shift) & 31] for shift in range(125, -1, -5))


def moment(value: datetime) -> str:
    """RFC 3339 in UTC with milliseconds."""
    value = value.astimezone(UTC)
    return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"


def jcs(value: Any) -> str:
    """RFC 8785, for what the clients here send."""
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda item: item[0].encode("utf-16-be"))
        return "{" + ",".join(f"{jcs(name)}:{jcs(item)}" for name, item in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(jcs, value)) + "]"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e21:
            return str(int(value))
        return repr(value).replace("e-0", "e-")  # Python pads the exponent, ECMAScript does not
    return json.dumps(value, ensure_ascii=False)


def hashes(row: Row, previous: bytes) -> tuple[bytes, bytes]:
    """Work out the content hash and the chain hash that a stored turn must have after `previous`."""
    fields = {name: row[name] for name in _PLAIN} | {
        name: None if row[name] is None else json.loads(row[name]) for name in _HASHED
    }
    if row.get("supersedes") is not None:
        fields["supersedes"] = ulid(row["supersedes"])
    if row["occurred_at"] != row["created_at"]:
        fields["occurred_at"] = moment(row["occurred_at"])
    form = jcs({name: value for name, value in fields.items() if value is not None})
    content = hashlib.sha256(row["salt"] + form.encode()).digest()
    lines = (ulid(row["id"]), str(row["seq"]), row["role"], row["kind"], moment(row["created_at"]), content.hex())
    return content, hashlib.sha256(previous + "\n".join(lines).encode()).digest()


async def check(world: World, superuser_url: str) -> dict[str, int]:
    """Hold the ledgers of all clients against the API and the database; what is wrong lands in `world.violations`."""
    connection = await asyncpg.connect(superuser_url)
    try:
        await _all_indexed(connection)
        served = await _history(world)
        conversation = await read(world, f"/v1/conversations/{world.conversation_id}")
        rows = [dict(row) for row in await connection.fetch("select * from turns order by seq")]
        findings = [
            *check_ledger(world.operations, served),
            *check_rows(rows, served),
            *check_chain(rows),
            *check_commits(rows),
            *await _head(connection, rows, conversation),
            *await _index(connection),
            *await _keys(connection, world.operations, rows),
            *await _trees(connection),
        ]
    finally:
        await connection.close()
    for sentence in findings:
        world.wrong(sentence)
    return {"turns": len(rows)}


async def _all_indexed(connection: asyncpg.Connection) -> None:
    """Wait until jobs have indexed what requests left to them; after two minutes the rows are checked as they are."""
    for _ in range(240):
        if not await connection.fetchval("select exists (select from turns where index_state = 'pending')"):
            return
        await asyncio.sleep(0.5)


async def _history(world: World) -> list[Row]:
    turns: list[Row] = []
    query = "?limit=200&order=asc"
    while True:
        page = await read(world, world.path + query)
        turns += page["data"]
        if not page["has_more"]:
            return turns
        query = f"?limit=200&order=asc&cursor={page['next_cursor']}"


def check_ledger(operations: Sequence[Operation], served: Sequence[Row]) -> Iterator[str]:
    """Acknowledged is there, once, where it was said to be; refused is not; the rest is whole or absent."""
    by_id = {turn["id"]: turn for turn in served}
    found: defaultdict[tuple[int, int], list[Row]] = defaultdict(list)
    for turn in served:
        found[turn["metadata"]["client"], turn["metadata"]["op"]].append(turn)
    if len(by_id) != len(served):
        yield "an id stands twice in the history"
    for operation in operations:
        who = f"client {operation.client} op {operation.number} ({operation.state})"
        turns = found.pop((operation.client, operation.number), [])
        yield from (f"{who} {sentence}" for sentence in _operation(operation, turns))
        for turn_id, seq, chain_hash in operation.places:
            turn = by_id.get(turn_id)
            if turn is None or (turn["seq"], turn["chain_hash"]) != (seq, chain_hash):
                yield f"{who}: turn {turn_id} was acknowledged at seq {seq} and is {turn and turn['seq']}"
    if found:
        yield f"turns of nobody: {list(found)[:5]}"


def _operation(operation: Operation, turns: Sequence[Row]) -> Iterator[str]:
    made = operation.turns[operation.carried :]
    parts = [turn["metadata"]["part"] for turn in turns]
    if operation.state == "refused" and turns:
        yield "is there"
    if operation.state == "acknowledged" and not turns:
        yield "is lost"
    if turns and parts != list(range(len(made))):
        yield f"is not there whole and once: parts {parts} of {len(made)}"
    for turn, sent in zip(turns, made, strict=False):
        if turn["content"] != sent["content"] or turn["metadata"] != sent["metadata"]:
            yield "is stored with other content"
        if "id" in sent and turn["id"] != ulid(UUID(sent["id"])):
            yield "is stored under another id"


def check_rows(rows: Sequence[Row], served: Sequence[Row]) -> Iterator[str]:
    """Check that table and API agree, seq has no gap and no duplicate, and each client turn is there once."""
    if [row["seq"] for row in rows] != list(range(1, len(rows) + 1)):
        yield f"seq is not 1..{len(rows)}"
    if [(row["seq"], row["position"], ulid(row["id"]), row["chain_hash"].hex()) for row in rows] != [
        (turn["seq"], turn["position"], turn["id"], turn["chain_hash"]) for turn in served
    ]:
        yield "the API's history and the table differ"
    places: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        metadata = json.loads(row["metadata"])
        places[metadata["client"], metadata["op"], metadata["part"]] += 1
        if row["status"] != "committed" or row["superseded_by"] is not None or row["index_state"] != "indexed":
            yield f"seq {row['seq']} is {row['status']}, {row['index_state']}"
        if NEVER in (row["content"] or ""):
            yield f"seq {row['seq']} holds what was refused"
    yield from (f"client turn {place} is there {times} times" for place, times in places.items() if times > 1)


def check_chain(rows: Sequence[Row]) -> Iterator[str]:
    """Every content hash and every link holds."""
    previous = bytes(32)
    for row in rows:
        content, chain = hashes(row, previous)
        if row["content_hash"] != content:
            yield f"the content hash of seq {row['seq']} does not match"
        if row["chain_hash"] != chain:
            yield f"the chain breaks at seq {row['seq']}"
            return
        previous = chain


def check_commits(rows: Sequence[Row]) -> Iterator[str]:
    """Check that a revision is one commit: gapless in the order of seq, and exactly one operation each."""
    by_rev: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_rev[row["rev"]].append(row)
    if list(by_rev) != list(range(1, len(by_rev) + 1)):
        yield "revisions are not gapless in the order of seq"
    for rev, together in by_rev.items():
        metadata = [json.loads(row["metadata"]) for row in together]
        if len({(item["client"], item["op"]) for item in metadata}) != 1 or len(together) != metadata[0]["of"]:
            yield f"revision {rev} is not exactly one operation"


async def _head(connection: Any, rows: Sequence[Row], conversation: Row) -> Iterator[str]:
    """Check that the head, the API's view of it and the rows agree."""
    heads = [dict(row) for row in await connection.fetch("select * from conversation_heads")]
    tokens = sum(row["content_tokens"] for row in rows)
    last = rows[-1] if rows else {"chain_hash": bytes(32), "rev": 0}
    expected = (len(rows), len(rows), tokens, last["rev"], last["chain_hash"].hex())
    names = ("last_seq", "turn_count", "token_count", "rev")
    of_heads = [(*(head[name] for name in names), head["chain_hash"].hex()) for head in heads]
    of_api = (*(conversation[name] for name in names), conversation["head_hash"])
    return iter(
        f"{where} {value} is not {expected}"
        for where, value in (*(("the head", head) for head in of_heads), ("the API's head", of_api))
        if value != expected
    )


async def _index(connection: Any) -> Iterator[str]:
    """Every turn has one index entry and a vector; nothing else does."""
    questions = {
        "turns without an index entry": "from turns t left join index_entries e on (e.tenant_id, e.entry_id) ="
        " (t.tenant_id, t.id) where e.entry_id is null",
        "index entries without a turn": "from index_entries e left join turns t on (e.tenant_id, e.entry_id) ="
        " (t.tenant_id, t.id) where t.id is null or e.position <> t.position or e.conversation_id <> t.conversation_id",
        "index entries that wait for vectors": "from index_entries where vectors_due or not live",
        "turns without a vector": "from turns t where not exists (select from vectors v where (v.tenant_id, v.entry_id)"
        " = (t.tenant_id, t.id))",
        "vectors without a turn": "from vectors v where not exists (select from turns t where (v.tenant_id, v.entry_id)"
        " = (t.tenant_id, t.id))",
        "index entries twice": "from (select entry_id from index_entries group by 1 having count(*) > 1) d",
    }
    counted = {what: await connection.fetchval(f"select count(*) {sql}") for what, sql in questions.items()}
    return iter(f"{count} {what}" for what, count in counted.items() if count)


async def _keys(connection: Any, operations: Sequence[Operation], rows: Sequence[Row]) -> Iterator[str]:
    """Check that a key is remembered exactly if what it did is there, and points at exactly that.

    Keys are stored as an HMAC, so a record is known by what it points at.
    """
    stored: defaultdict[tuple[int, int], list[UUID]] = defaultdict(list)
    for row in rows:
        metadata = json.loads(row["metadata"])
        stored[metadata["client"], metadata["op"]].append(row["id"])
    records = Counter(
        tuple(row["result_ids"]) for row in await connection.fetch("select result_ids from idempotency_records")
    )
    wrong: list[str] = []
    for operation in operations:
        result = tuple(stored[operation.client, operation.number])
        if operation.key is not None and result and records.pop(result, 0) != 1:
            wrong.append(f"the record of key {operation.key} ({operation.state}) is not what is stored")
    wrong.extend(f"{count} records of nobody's key point at {result}" for result, count in records.items())
    return iter(wrong)


async def _trees(connection: Any) -> Iterator[str]:
    """Check that the B-trees on disk are sound and hold every row (amcheck, where it is installed)."""
    if not await connection.fetchval("select 1 from pg_available_extensions where name = 'amcheck'"):
        return iter(())
    await connection.execute("create extension if not exists amcheck")
    wrong: list[str] = []
    indexes = await connection.fetch(
        "select i.indexrelid::regclass::text as name from pg_index i join pg_class c on c.oid = i.indexrelid"
        " join pg_am a on a.oid = c.relam join pg_namespace n on n.oid = c.relnamespace"
        " where a.amname = 'btree' and n.nspname = 'public' and c.relkind = 'i'"
    )
    for index in indexes:
        try:
            await connection.execute(f"select bt_index_check('{index['name']}'::regclass, true)")
        except asyncpg.PostgresError as error:
            wrong.append(f"index {index['name']} is damaged: {error}")
    return iter(wrong)
