"""What the pages of the dashboard show in the soak: a small travel agency, written through the API."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

TITLES = (
    "Flights from Hamburg in May", "Refund of a cancelled hotel", "Gluten-free restaurants in Porto", "Visa for Japan",
    "A quiet beach for two", "Train from Berlin to Lisbon", "Lost luggage, case 4471", "Insurance: what is covered?",
    "Weekend in Ghent", "Change of the return flight", "Travelling with a dog", "Car hire with a child seat",
    "Company trip for 14 people",
    "A long title, as a caller writes it who takes the first sentence of a message and does not cut it anywhere",
    "Ferry to Bornholm", "Museum passes", "Jet lag", "Trams of Lisbon", "旅行の計画", "رحلة إلى لشبونة",
)  # fmt: skip
OWNERS = ("mia", "jonas", "ana", "tariq")
LINES = (
    ("user", "mia", "We want a week in **Lisbon** in May. I cannot eat gluten, and Jonas hates early flights."),
    ("assistant", "planner", "Noted: no gluten for you, no flight before nine for Jonas. What is the budget?"),
    ("user", "jonas", "About 1 800 euros in all. I live in Hamburg, Mia lives in Bremen."),
    ("assistant", "planner", "Two fit:\n\n| from | price |\n|---|---|\n| Hamburg | 184 € |\n| Bremen | 201 € |"),
    ("user", "mia", "Good. Which part of the city is quiet at night?"),
    ("assistant", "planner", "Príncipe Real:\n\n1. on a hill,\n2. near the `Rato` station,\n3. bars close at one."),
    ("user", "jonas", "And where do we keep the luggage on the last day?\n\n```python\nprint('until 19:30')\n```"),
    ("assistant", "planner", "The hotel keeps it until eight in the evening, without a charge."),
    ("user", "mia", "Is there a bakery where I can eat the bread?"),
    ("assistant", "planner", "Yes, in Rua do Século: it has no gluten at all. It opens at eight."),
    ("user", "jonas", "How do we get from the airport to the hotel with two suitcases?"),
    ("assistant", "planner", "By metro to Alameda, then three stations of the green line. A taxi is about 15 euros."),
    ("user", "mia", "My sister Lena joins us on Thursday. She comes by train from Porto."),
    ("assistant", "planner", "Then I keep Thursday afternoon free: her train arrives at Santa Apolónia at 14:10."),
    ("user", "jonas", "We would like to see the sea. Nothing crowded, please."),
    ("assistant", "planner", "Praia da Adraga is small and seldom full. The bus from Sintra goes every hour."),
)  # fmt: skip


class Filled:
    """Ids of what was stored."""

    conversation: str
    empty: str
    fact: str
    webhook: str


async def fill(client: httpx.AsyncClient, hook_url: str) -> Filled:
    """Store conversations, facts, memories, keys, tenants, a webhook and an erasure, as a tenant with every scope."""
    filled = Filled()
    for number, title in enumerate(TITLES * 2):
        made = {"title": title, "owner": OWNERS[number % 4], "project": ("default", "support")[number % 2]}
        other = await post(client, "/v1/conversations", made)
        await append_turns(client, other["id"], turns_of(2 + number % 5, 2 * number))
    filled.empty = (await post(client, "/v1/conversations", {"title": "Not begun yet"}))["id"]
    filled.conversation = await _long_conversation(client)
    filled.fact = await _facts(client, filled.conversation)
    for content in ("Mia cannot eat gluten.", "Mia prefers trains to planes.", "Jonas hates early flights."):
        await post(client, "/v1/memories", {"content": content, "owner": content.partition(" ")[0].lower()})
    filled.webhook = await _administration(client, hook_url)
    return filled


async def _long_conversation(client: httpx.AsyncClient) -> str:
    """A conversation with summaries, tool calls, a revised and an erased turn."""
    made = {"title": "A week in Lisbon", "owner": "mia", "compaction": {"strategy": "rolling", "trigger_turns": 1000}}
    conversation = str((await post(client, "/v1/conversations", made))["id"])
    for day in range(15):
        stored = await append_turns(client, conversation, turns_of(8, 8 * day))
    path = f"/v1/conversations/{conversation}"
    for through in (39, 79):
        page = await client.get(f"{path}/turns?after={through}&limit=1")
        await post(client, f"{path}/summaries", {"through": page.json()["data"][0]["id"]})
    revised = stored["turns"][5]["id"]
    await post(client, f"{path}/turns/{revised}/revisions", {"content": "Príncipe Real, or **Lapa**: both are quiet."})
    erased = await client.delete(f"{path}/turns", params={"ids": stored["turns"][6]["id"]})
    assert erased.status_code == 200, erased.text
    call = {"id": "call_1", "name": "search_flights", "arguments": '{"from": ["HAM", "BRE"], "to": "LIS"}'}
    flights = '{"flights": [{"from": "HAM", "at": "11:20", "price": 184}]}'
    tools: list[dict[str, Any]] = [
        {"role": "assistant", "actor": "planner", "content": "I look for flights.", "tool_calls": [call]},
        {"role": "tool", "actor": "search_flights", "tool_call_id": "call_1", "content": flights},
        {"role": "user", "actor": "mia", "content": "Yes, please book them. I moved to Hamburg, by the way."},
    ]
    await append_turns(client, conversation, tools)
    return conversation


async def _facts(client: httpx.AsyncClient, conversation: str) -> str:
    newest = (await client.get(f"/v1/conversations/{conversation}/turns?limit=1")).json()["data"][0]["id"]
    first = (await client.get(f"/v1/conversations/{conversation}/turns?order=asc&limit=1")).json()["data"][0]["id"]
    source = {"owner": "mia", "conversation_id": conversation}
    stated = (
        ("mia", "lives_in", "Bremen", first, "2026-01-05T00:00:00Z"),
        ("mia", "eats", "no gluten", first, "2026-01-05T00:00:00Z"),
        ("jonas", "lives_in", "Hamburg", first, "2026-01-05T00:00:00Z"),
        ("mia", "lives_in", "Hamburg", newest, "2026-06-01T00:00:00Z"),
    )
    for subject, predicate, thing, turn, since in stated:
        fact = {"subject": subject, "predicate": predicate, "object": thing, "valid_from": since}
        made = await post(
            client, "/v1/facts", source | fact | {"source_turn_ids": [turn], "replaces": predicate == "lives_in"}
        )
    return str(made["fact"]["id"])


async def _administration(client: httpx.AsyncClient, hook_url: str) -> str:
    for name, more in (
        ("shop backend", {"scopes": ["read", "write"]}),
        ("support desk", {"scopes": ["read"], "projects": ["support"]}),
        ("Mia's phone", {"owners": ["mia"], "expires_at": (datetime.now(UTC) + timedelta(days=30)).isoformat()}),
    ):
        await post(client, "/v1/admin/keys", {"name": name} | more)
    for name in ("Northern branch", "Southern branch"):
        await post(client, "/v1/admin/tenants", {"name": name})
    hook = str((await post(client, "/v1/webhooks", {"url": hook_url, "description": "Shop"}))["id"])
    await client.post(f"/v1/webhooks/{hook}/test")
    await post(client, "/v1/conversations", {"title": "Written while a webhook follows"})
    started = await client.post("/v1/erasures", json={"owner": "a guest"})
    assert started.status_code == 202, started.text
    return hook


def turns_of(count: int, start: int = 0) -> list[dict[str, Any]]:
    chosen = [LINES[(start + number) % len(LINES)] for number in range(count)]
    return [{"role": role, "actor": actor, "content": content} for role, actor, content in chosen]


async def append_turns(client: httpx.AsyncClient, conversation: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    return await post(client, f"/v1/conversations/{conversation}/turns", {"turns": turns})


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.is_success, f"{path}: {answer.text}"
    return answer.json()
