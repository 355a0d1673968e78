"""Histories through each call that asks a model: what the model is sent equals what was given.

`TURNKEEP_PROPERTY_EXAMPLES=5000` is the long form: this many histories for each call.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any

import pytest

from app.formats.schemas import Format
from app.formats.service import parse
from tests.properties.test_context_round_trip import dumps, shown
from tests.support.api import Client, Service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.histories import History, Message, history
from tests.support.modelled import open_modelled

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "6"))
START = int(os.environ.get("TURNKEEP_PROPERTY_SEED", "0"))
"""The seed of the first history; the others count from it."""
BATCH = 200
AT_ONCE = 8
ROOM = 200_000
LAST = {"role": "user", "content": "So?"}


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = says("Done.")
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_modelled(service, fake, tmp_path_factory.mktemp("modelled"), generation_timeout_s=120) as opened:
        yield opened


@pytest.fixture
async def tenant(modelled: Service, fake: FakeChat) -> AsyncIterator[Client]:
    fake.chats.clear()
    async with await modelled.new_tenant() as opened:
        yield opened


async def post(tenant: Client, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await tenant.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    return response.json()


def given_in(source: Format, seed: int) -> History:
    return history(source, Random(seed))  # noqa: S311


def after(messages: list[Message], seed: int) -> list[Message]:
    """Messages that end with a question of their own, by which the request to the model is found."""
    return [*messages, LAST | {"content": f"So, {seed}?"}]


async def by_chat(tenant: Client, seed: int) -> None:
    conversation = await tenant.conversation()
    given = after(given_in(Format.OPENAI, seed).messages, seed)
    body = {"model": CHAT_MODEL, "conversation_id": conversation, "token_budget": ROOM}
    await post(tenant, "/openai/v1/chat/completions", body | {"messages": given})
    again = [*given, {"role": "assistant", "content": "Done."}, {"role": "user", "content": f"Then, {seed}?"}]
    await post(tenant, "/openai/v1/chat/completions", body | {"messages": again})


async def by_generate(tenant: Client, seed: int) -> None:
    given = after(given_in(Format.OPENAI, seed).messages, seed)
    body = {"conversation_id": await tenant.conversation(), "token_budget": ROOM, "messages": given}
    await post(tenant, "/v1/generate", body)


async def by_responses(tenant: Client, seed: int) -> None:
    given = [item for item in given_in(Format.OPENAI_RESPONSES, seed).messages if item.get("type") != "item_reference"]
    given = after(given, seed)
    body = {"model": CHAT_MODEL, "token_budget": ROOM, "input": given, "conversation": await tenant.conversation()}
    await post(tenant, "/openai/v1/responses", body)


async def by_items(tenant: Client, seed: int) -> None:
    """The items first, then a response in their conversation, with all items sent back."""
    conversation = await tenant.conversation()
    *given, last = after(given_in(Format.OPENAI_RESPONSES, seed).messages, seed)
    path = f"/openai/v1/conversations/{conversation}/items"
    items = (await post(tenant, path, {"items": given}))["data"]
    body = {"model": CHAT_MODEL, "token_budget": ROOM, "input": [*items, last], "conversation": conversation}
    await post(tenant, "/openai/v1/responses", body)


def appended(source: Format) -> Callable[[Client, int], Coroutine[Any, Any, None]]:
    """The history of any format first, then an answer of the model."""

    async def route(tenant: Client, seed: int) -> None:
        conversation = await tenant.conversation()
        body = {"turns": given_in(source, seed).messages, "format": source}
        await post(tenant, f"/v1/conversations/{conversation}/turns", body, 201)
        body = {"conversation_id": conversation, "token_budget": ROOM, "messages": after([], seed)}
        await post(tenant, "/v1/generate", body)

    return route


ROUTES: dict[str, tuple[Format, Callable[[Client, int], Coroutine[Any, Any, None]]]] = {
    "chat": (Format.OPENAI, by_chat),
    "generate": (Format.OPENAI, by_generate),
    "responses": (Format.OPENAI_RESPONSES, by_responses),
    "items": (Format.OPENAI_RESPONSES, by_items),
    **{f"append {source}": (source, appended(source)) for source in Format},
}


def expected(route: str, source: Format, seed: int) -> list[Message]:
    """The messages for the model: as given if they are chat messages, else as a context for chat has them."""
    given = given_in(source, seed)
    if source is Format.OPENAI:
        messages = given.shown
        if route in {"chat", "generate"}:  # system messages are instructions of this call, which come first
            texts = list(dict.fromkeys(m["content"] for m in messages if m["role"] in {"system", "developer"}))
            rest = [m for m in messages if m["role"] not in {"system", "developer"}]
            messages = [*([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), *rest]
        return after(messages, seed)
    return as_chat(source, given.messages, seed)


def as_chat(source: Format, messages: list[Message], seed: int) -> list[Message]:
    turns = [one.members() for one in parse(source, messages)]
    return shown_as_chat([*turns, *after([], seed)])


def shown_as_chat(turns: list[Message]) -> list[Message]:
    messages, _ = shown(Format.CANONICAL, turns, target=Format.OPENAI)
    return messages


def differences(route: str, seed: int, requests: dict[str, list[Message]]) -> list[str]:
    """What the model was sent for one history, where it differs from what was given."""
    source, _ = ROUTES[route]
    sent, wanted = requests.get(f"So, {seed}?", []), expected(route, source, seed)
    differing = [] if dumps(sent) == dumps(wanted) else [f"seed {seed}: {dumps(sent)} instead of {dumps(wanted)}"]
    if route == "chat":  # the whole history once more, with the answer and another question
        answer = {"role": "assistant", "content": "Done."}
        again = requests.get(f"Then, {seed}?", [])
        if dumps(again[:-1]) != dumps([*sent, answer]):
            differing.append(f"seed {seed}, the second time: {dumps(again)} instead of {dumps(sent)}")
    return differing


@pytest.mark.parametrize("route", ROUTES)
async def test_a_model_is_sent_the_messages_that_were_given(tenant: Client, fake: FakeChat, route: str) -> None:
    _, through = ROUTES[route]
    limit = asyncio.Semaphore(AT_ONCE)
    failures: list[str] = []

    async def one(seed: int) -> None:
        async with limit:
            try:
                await through(tenant, seed)
            except AssertionError as refused:
                failures.append(f"seed {seed}: {refused}")

    for first in range(START, START + EXAMPLES, BATCH):
        seeds = range(first, min(first + BATCH, START + EXAMPLES))
        fake.chats.clear()
        await asyncio.gather(*map(one, seeds))
        requests = {str(chat["messages"][-1]["content"]): chat["messages"] for chat in fake.chats}
        failures += [line for seed in seeds for line in differences(route, seed, requests)]
        assert not failures, f"{len(failures)} histories of {route}:\n" + "\n".join(failures[:5])
