"""What each part measures in one round. Every operation is followed by its floor, so that both see the same machine."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, islice
from typing import Final

from client import Client
from figures import percentile
from pydantic import JsonValue
from suite import processes
from suite.figure import Figure
from suite.floor import DirectFloor, conversation_id
from suite.load import Request, RequestsOf, send
from suite.texts import TextSource
from suite.workbench import MS, Case, Workbench, append_body, encode, same_for_all

from app.diagnostics.monitor import INTERVAL_S

CONTEXT_TOKENS: Final = 4000
IDLE_S: Final = 5.0
PER_ENTRIES: Final = 100_000
RETURNED_S: Final = 2.5 * INTERVAL_S
"""After this time, a process has returned the memory that it needed only to read entries."""
BARE_APPEND: Final = "bare route: append 1"
BARE_HISTORY: Final = "bare route: history of 50"
BARE_RECALL: Final = "bare route: embed a query, read 10 turns"


def recalls(texts: TextSource, path: str) -> Callable[[], Iterator[Request]]:
    """Searches with k 10, each with a question of its own."""

    def requests() -> Iterator[Request]:
        for question in texts.questions():
            yield Request(path, encode({"query": question, "k": 10}))

    return requests


def appends(texts: TextSource, path: str, count_: int) -> Iterator[Request]:
    """Appends of so many messages."""
    messages = texts.messages()
    while True:
        yield Request(path, append_body(list(islice(messages, count_))))


def reads(path: str) -> Callable[[], Iterator[Request]]:
    """Get the same path again and again."""

    def requests() -> Iterator[Request]:
        while True:
            yield Request(path)

    return requests


async def measure_recall(bench: Workbench) -> None:
    """Recall in one conversation of each size; in the middle one with many clients, and at a fixed rate."""
    for size in bench.sizes.conversations:
        conversation = await bench.conversation(size)
        requests = same_for_all(recalls(bench.texts, f"/v1/conversations/{conversation}/recall"))
        await bench.measure("recall", Case(f"recall, {size} turns", requests, floor=BARE_RECALL))
        if size != bench.sizes.middle:
            continue
        busiest = 0.0
        for clients in bench.sizes.many:
            name = f"recall, {size} turns, {clients} clients"
            figure = await bench.measure("recall", Case(name, requests, clients=clients))
            busiest = max(busiest, figure.per_second or 0.0)
        name = f"recall, {size} turns, open loop at half of the highest rate"
        await bench.measure("recall", Case(name, requests, open_rate=max(1.0, busiest / 2)))
    path = f"/conversations/{conversation_id(0)}/recall"
    await bench.measure("recall", Case(BARE_RECALL, same_for_all(recalls(bench.texts, path)), at_floor=True))


async def measure_tenant(bench: Workbench) -> None:
    """Recall across all conversations of a tenant."""
    for size in bench.sizes.conversations:
        await bench.conversation(size)
    await bench.fill_tenant(bench.sizes.tenant)
    requests = same_for_all(recalls(bench.texts, "/v1/recall"))
    await bench.measure("tenant", Case(f"recall, tenant of {bench.sizes.tenant}", requests, floor=BARE_RECALL))
    path = f"/conversations/{conversation_id(0)}/recall"
    await bench.measure("tenant", Case(BARE_RECALL, same_for_all(recalls(bench.texts, path)), at_floor=True))


async def measure_cold(bench: Workbench) -> None:
    """Restart the service: idle memory, the first recall of conversations that no process holds, memory per entry."""
    size = bench.sizes.middle
    conversations = [await bench.conversation(size, number) for number in range(bench.sizes.cold)]
    smallest = await bench.conversation(min(bench.sizes.conversations))
    await bench.quiet()
    await bench.restart()
    if bench.sizes.settle_s:
        await asyncio.sleep(IDLE_S)
    idle = processes.memory_mib(bench.server.pid)
    bench.keep(Figure(name="idle memory", part="cold", loop="none", mib=idle))
    questions = bench.texts.questions()
    async with bench.client() as client:
        # the first request of a process pays for more than the search
        await _recall(client, smallest, next(questions))
        before = processes.memory_mib(bench.server.pid)
        seconds = [await _recall(client, conversation, next(questions)) for conversation in conversations]
        if bench.sizes.settle_s:
            await asyncio.sleep(RETURNED_S)
        grown = processes.memory_mib(bench.server.pid) - before
    bench.keep(
        Figure(
            name=f"first recall, {size} turns",
            part="cold",
            requests=len(seconds),
            p50_ms=MS * percentile(seconds, 0.5),
            p95_ms=MS * percentile(seconds, 0.95),
        )
    )
    per_entries = grown * PER_ENTRIES / (size * len(conversations))
    bench.keep(Figure(name="memory of 100 000 entries searched", part="cold", loop="none", mib=per_entries))


async def _recall(client: Client, conversation: str, question: str) -> float:
    request = Request(f"/v1/conversations/{conversation}/recall", encode({"query": question, "k": 10}))
    return await send(client, request)


async def measure_contexts(bench: Workbench) -> None:
    """Contexts of 4 000 tokens without and with recall."""
    size = bench.sizes.middle
    path = f"/v1/conversations/{await bench.conversation(size)}/context"

    def requests() -> Iterator[Request]:
        while True:
            yield Request(path, encode({"token_budget": CONTEXT_TOKENS}))

    def with_recall() -> Iterator[Request]:
        for question in bench.texts.questions():
            body: dict[str, JsonValue] = {
                "token_budget": CONTEXT_TOKENS, "query": question, "semantic_recall": {"k": 10},
            }  # fmt: skip
            yield Request(path, encode(body))

    name = f"context, {size} turns"
    await bench.measure("contexts", Case(name, same_for_all(requests), floor=BARE_HISTORY))
    await bench.measure("contexts", Case(f"{name}, with recall", same_for_all(with_recall), floor=BARE_HISTORY))
    await _measure_bare_history(bench, "contexts")


async def _measure_bare_history(bench: Workbench, part: str) -> None:
    path = f"/conversations/{conversation_id(0)}/turns"
    await bench.measure(part, Case(BARE_HISTORY, same_for_all(reads(path)), at_floor=True))


async def measure_reads(bench: Workbench) -> None:
    """Read a conversation, and the newest 50 turns of its history."""
    size = bench.sizes.middle
    conversation = await bench.conversation(size)
    path = f"/v1/conversations/{conversation}"
    bare = "bare route: GET conversation"
    await bench.measure("reads", Case("GET conversation", same_for_all(reads(path)), floor=bare))
    bare_path = f"/conversations/{conversation_id(0)}"
    await bench.measure("reads", Case(bare, same_for_all(reads(bare_path)), at_floor=True))
    for clients in (1, *bench.sizes.many):
        name = "history of 50" if clients == 1 else f"history of 50, {clients} clients"
        case = Case(name, same_for_all(reads(f"{path}/turns?limit=50")), clients=clients, floor=BARE_HISTORY)
        await bench.measure("reads", case)
    await _measure_bare_history(bench, "reads")
    await _measure_direct(bench, "reads", "asyncpg: select 50 turns", DirectFloor(bench.connection).select)


async def _measure_direct(bench: Workbench, part: str, name: str, call: Callable[[], Awaitable[float]]) -> None:
    await bench.quiet()
    seconds = [await call() for _ in range(max(bench.sizes.span.min_requests, 5))]
    bench.keep(
        Figure(
            name=name,
            part=part,
            requests=len(seconds),
            p50_ms=MS * percentile(seconds, 0.5),
            p95_ms=MS * percentile(seconds, 0.95),
        )
    )


async def measure_appends(bench: Workbench) -> None:
    """Append one turn with 1, 8 and 32 clients, 50 turns, and in bulk; the embedder alone."""
    for clients in (1, *bench.sizes.many):
        suffix = "" if clients == 1 else f", {clients} clients"
        own = [await bench.create() for _ in range(clients)]
        bare = f"{BARE_APPEND}{suffix}"
        case = Case(f"append 1{suffix}", _appends_to(bench, own, 1), clients=clients, floor=bare)
        await bench.measure("appends", case)
        bare_case = Case(bare, _bare_appends(bench, 1), clients=clients, at_floor=True)
        await bench.measure("appends", bare_case)
    clients = bench.sizes.many[0]
    one = [await bench.create()] * clients
    name = f"append 1, {clients} clients, one conversation"
    await bench.measure("appends", Case(name, _appends_to(bench, one, 1), clients=clients))
    await _measure_direct(bench, "appends", "asyncpg: insert 1 turn", DirectFloor(bench.connection).insert)
    await _measure_batches(bench)
    await _measure_bulk(bench, deferred=False)
    await _measure_bulk(bench, deferred=True)


def _appends_to(bench: Workbench, conversations: list[str], count_: int) -> RequestsOf:
    return lambda number: appends(bench.texts, f"/v1/conversations/{conversations[number]}/turns", count_)


def _bare_appends(bench: Workbench, count_: int) -> RequestsOf:
    # the first conversation keeps the size that the reads expect
    return lambda number: appends(bench.texts, f"/conversations/{conversation_id(number + 2)}/turns", count_)


async def _measure_batches(bench: Workbench) -> None:
    batch = bench.sizes.batch
    bare, alone = f"bare route: append {batch}", f"the embedder alone, {batch} texts"
    conversation = [await bench.create()]
    name = f"append {batch}"
    await bench.measure("appends", Case(name, _appends_to(bench, conversation, batch), items=batch, floor=bare))
    await bench.measure("appends", Case(bare, _bare_appends(bench, batch), items=batch, at_floor=True))

    def texts() -> Iterator[Request]:
        messages = bench.texts.messages()
        while True:
            contents: list[JsonValue] = [message.content for message in islice(messages, batch)]
            yield Request("/embed", encode({"texts": contents}))

    await bench.measure("appends", Case(alone, same_for_all(texts), items=batch, at_floor=True))


async def _measure_bulk(bench: Workbench, *, deferred: bool) -> None:
    """Append in bulk, with all vectors made later or only those above the limit, and wait for the vectors."""
    bulk = bench.sizes.bulk
    path = f"/v1/conversations/{await bench.create()}/turns"
    messages = bench.texts.messages()

    def requests() -> Iterator[Request]:
        while True:
            turns: list[JsonValue] = [{"role": one.role, "content": one.content} for one in islice(messages, bulk)]
            yield Request(path, encode({"turns": turns, "index": "deferred" if deferred else "now"}))

    await bench.quiet()
    name = f"bulk append of {bulk}, deferred" if deferred else f"bulk append of {bulk}"
    started = time.perf_counter()
    figure = await bench.measure("appends", Case(name, same_for_all(requests), items=bulk))
    await bench.quiet()
    elapsed_s = time.perf_counter() - started - 2 * bench.sizes.settle_s
    requests_sent = figure.requests + bench.sizes.span.warm_up
    whole = Figure(name=f"{name}, until all vectors are stored", part="appends", items=bulk, requests=requests_sent)
    bench.keep(whole.model_copy(update={"per_second": requests_sent / elapsed_s}))


async def measure_agents(bench: Workbench) -> None:
    """before-turn and after-turn in a session of an agent."""
    size = bench.sizes.session
    session: dict[str, JsonValue] = {"project": "bench", "session_id": bench.session, "user_id": "bench"}
    messages, questions, numbers = bench.texts.messages(), bench.texts.questions(), count()

    def item(role: str, text: str) -> JsonValue:
        return {"type": "message", "role": role, "content": text}

    async with bench.client() as client:
        while bench.session_turns < size:
            items = [item(one.role, one.content) for one in islice(messages, min(100, size - bench.session_turns))]
            body: dict[str, JsonValue] = {**session, "turn_id": f"fill-{bench.session_turns}", "input_items": items}
            await client.demand("fill", "/v1/lifecycle/after-turn", body)
            bench.session_turns += len(items)
            bench.is_vacuumed = False

    def before() -> Iterator[Request]:
        while True:
            body: dict[str, JsonValue] = {
                **session, "turn_id": f"before-{next(numbers)}", "current_input": [item("user", next(questions))],
                "base_instructions": "You help.", "max_input_tok": 8000,
            }  # fmt: skip
            yield Request("/v1/lifecycle/before-turn", encode(body))

    def after() -> Iterator[Request]:
        while True:
            body: dict[str, JsonValue] = {
                **session, "turn_id": f"after-{next(numbers)}", "input_items": [item("user", next(questions))],
                "output_items": [item("assistant", next(messages).content)],
            }  # fmt: skip
            yield Request("/v1/lifecycle/after-turn", encode(body))

    name = f"before_turn, {size} turns"
    await bench.measure("agents", Case(name, same_for_all(before), floor=BARE_HISTORY))
    await _measure_bare_history(bench, "agents")
    await bench.measure("agents", Case("after_turn, 2 turns", same_for_all(after), floor=BARE_APPEND))


PARTS: Final[dict[str, Callable[[Workbench], Awaitable[None]]]] = {
    "recall": measure_recall,
    "contexts": measure_contexts,
    "reads": measure_reads,
    "cold": measure_cold,
    "tenant": measure_tenant,
    "agents": measure_agents,
    "appends": measure_appends,
}
"""All parts, in the order in which they run: those that add turns come last."""
