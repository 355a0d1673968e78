"""The programs of the guide to chat platforms, run as they are between a fake platform and a real server."""

import asyncio
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema_rs import Draft202012Validator

from tests.clients.node import PROGRAMS
from tests.support.api import Client
from tests.support.command import migrated_data
from tests.support.fake_chat import FakeChat, open_fake_chat, says
from tests.support.process import Process, free_port, installed_program, process_folder
from tests.support.receiver import Receiver, receiving

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs/guides"
WORKFLOW = GUIDES / "n8n-workflow.json"
SECRET, SIGNING_SECRET = "a" * 32, "8f742231b10e8888abcd99yyyzzz85a5"
MIA, JONAS = {"id": 1001, "first_name": "Mia"}, {"id": 1002, "first_name": "Jonas"}
ROOM, PRIVATE = {"id": -500, "type": "group", "title": "Dinner"}, {"id": 1001, "type": "private"}
START_S = 60

pytestmark = pytest.mark.slow


@pytest.fixture
async def model() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as fake:
        fake.reply = says("Risotto.")
        yield fake


@pytest.fixture
async def slack() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        receiver.status, receiver.body = 200, b'{"ok": true}'
        yield receiver


class Bot:
    """A program of the guide in a process of its own."""

    def __init__(self, program: Path, env: dict[str, str]) -> None:
        self._port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
        env = kept | env | {"PORT": str(self._port), "NO_PROXY": "127.0.0.1"}
        self._process = subprocess.Popen([sys.executable, program], env=env)
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=60)

    async def post(self, body: bytes, headers: Mapping[str, str] | Mapping[bytes, bytes]) -> httpx.Response:
        """Send a request of the platform, as soon as the program listens."""
        until = time.monotonic() + START_S
        while True:
            try:
                return await self._http.post("/", content=body, headers=headers)
            except httpx.ConnectError:
                assert self._process.poll() is None
                assert time.monotonic() < until
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        self._process.kill()
        self._process.wait()
        await self._http.aclose()


@asynccontextmanager
async def running(program: str, url: str, key: str, model: FakeChat, **env: str) -> AsyncIterator[Bot]:
    """Run a program of the guide, by its name."""
    bot = Bot(
        GUIDES / program,
        {"TURNKEEP_URL": url, "TURNKEEP_API_KEY": key, "MODEL_URL": model.url, "MODEL": "fake-chat", **env},
    )
    try:
        yield bot
    finally:
        await bot.close()


def telegram(url: str, key: str, model: FakeChat) -> Any:
    return running("telegram_bot.py", url, key, model, TELEGRAM_SECRET=SECRET, TELEGRAM_BOT="dinner_bot")


def slack_app(url: str, key: str, model: FakeChat, slack: Receiver) -> Any:
    api = f"http://127.0.0.1:{slack.port}"
    return running(
        "slack_bot.py",
        url,
        key,
        model,
        SLACK_SIGNING_SECRET=SIGNING_SECRET,
        SLACK_BOT_TOKEN="xoxb-1",
        SLACK_API=api,
    )


async def update(bot: Bot, number: int, sender: dict[str, Any], chat: dict[str, Any], text: str, **more: str) -> Any:
    """Send an update of Telegram; what the bot responds."""
    message = {"message_id": number, "from": sender, "chat": chat, "date": 1, "text": text}
    secret = more.get("secret", SECRET)
    headers = {b"X-Telegram-Bot-Api-Secret-Token": secret.encode("latin-1"), b"Content-Type": b"application/json"}
    response = await bot.post(json.dumps({"update_id": number, "message": message}).encode(), headers)
    return response.json() if response.status_code == 200 else response.status_code


def signed(body: bytes, *, at: float | None = None, secret: str = SIGNING_SECRET) -> dict[str, str]:
    sent = str(int(time.time() if at is None else at))
    made = hmac.new(secret.encode(), b"v0:" + sent.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": sent, "X-Slack-Signature": f"v0={made}"}


def event(ts: str, user: str, text: str, **more: Any) -> bytes:
    message = {"type": "message", "channel": "C1", "user": user, "text": text, "ts": ts, "channel_type": "channel"}
    payload = {"type": "event_callback", "team_id": "T1", "event_id": f"Ev{ts}", "event": message | more}
    return json.dumps(payload | {"authorizations": [{"user_id": "UBOT"}]}).encode()


async def stored(tenant: Client, external_id: str) -> list[tuple[str, str, str]]:
    (found,) = (await tenant.get("/v1/conversations", params={"external_id": external_id})).json()["data"]
    turns = (await tenant.get(f"/v1/conversations/{found['id']}/turns")).json()["data"]
    return [(turn["role"], turn["actor"], turn["content"]) for turn in turns]


async def wait_for(sequence: Sequence[object], count: int) -> None:
    """Wait until a list has so many items, at most a minute."""
    until = time.monotonic() + 60
    while len(sequence) < count:
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


async def test_a_telegram_room_of_two_people_is_remembered_and_a_repeated_update_is_stored_once(
    url: str, tenant: Client, model: FakeChat
) -> None:
    async with telegram(url, tenant.key, model) as bot:
        assert await update(bot, 1, MIA, ROOM, "I eat no peanuts.", secret="b" * 32) == 403
        assert await update(bot, 1, MIA, ROOM, "I eat no peanuts.", secret="é") == 403
        assert await update(bot, 1, MIA, ROOM, "I eat no peanuts.") == {}
        for _ in range(2):
            said = await update(bot, 2, JONAS, ROOM, "@dinner_bot what can Mia eat?")
            assert said == {"method": "sendMessage", "chat_id": -500, "text": "Risotto."}
        assert len(model.chats) == 1
        assert "peanuts" in json.dumps(model.chats[0]["messages"])
        model.reply = says("Nothing is known.")
        assert (await update(bot, 3, MIA, PRIVATE, "What do you know?"))["text"] == "Nothing is known."
        assert "peanuts" not in json.dumps(model.chats[1]["messages"])
        assert (await bot.post(b"{", {"X-Telegram-Bot-Api-Secret-Token": SECRET})).status_code == 500
    assert await stored(tenant, "telegram-dinner_bot--500") == [
        ("user", "Mia-1001", "I eat no peanuts."), ("user", "Jonas-1002", "@dinner_bot what can Mia eat?"),
        ("assistant", "dinner_bot", "Risotto."),
    ]  # fmt: skip


async def test_a_telegram_update_whose_model_failed_is_answered_at_its_next_delivery(
    url: str, tenant: Client, model: FakeChat
) -> None:
    async with telegram(url, tenant.key, model) as bot:
        model.replies = [says("", mode="error")]
        assert await update(bot, 1, MIA, PRIVATE, "Dinner?") == 500
        assert (await update(bot, 1, MIA, PRIVATE, "Dinner?"))["text"] == "Risotto."
    assert [role for role, _, _ in await stored(tenant, "telegram-dinner_bot-1001")] == ["user", "assistant"]


async def test_two_deliveries_of_a_telegram_update_at_one_moment_store_and_deliver_one_answer(
    url: str, tenant: Client, model: FakeChat
) -> None:
    model.may_answer = asyncio.Event()
    model.replies = [says("Risotto."), says("Soup.")]
    async with telegram(url, tenant.key, model) as bot:
        both = [asyncio.create_task(update(bot, 1, MIA, PRIVATE, "Dinner?")) for _ in range(2)]
        await wait_for(model.chats, 2)
        model.may_answer.set()
        texts = {said["text"] for said in await asyncio.gather(*both)}
    roles = await stored(tenant, "telegram-dinner_bot-1001")
    assert [role for role, _, _ in roles] == ["user", "assistant"]
    assert texts == {roles[1][2]}


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process_folder() as made:
        migrated_data(made / "data")
        process = Process(made / "data", embedder="none")
        yield process.start().wait()
        process.stop()


async def test_memory_is_kept_when_bot_and_server_are_killed_between_two_messages(
    server: Process, model: FakeChat
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    async with telegram(url, server.key, model) as bot:
        assert await update(bot, 1, MIA, ROOM, "I eat no peanuts.") == {}
    assert server.serving is not None
    server.serving.kill()
    await asyncio.to_thread(server.serving.wait)
    await asyncio.to_thread(server.start().wait)
    async with telegram(url, server.key, model) as bot:
        assert (await update(bot, 2, MIA, ROOM, "@dinner_bot dinner?"))["text"] == "Risotto."
    assert "peanuts" in json.dumps(model.chats[0]["messages"])


async def test_slack_events_are_verified_answered_once_and_remembered_across_a_restart(
    url: str, tenant: Client, model: FakeChat, slack: Receiver
) -> None:
    first, second = event("1.1", "UMIA", "I eat no peanuts."), event("1.2", "UJONAS", "<@UBOT> what can <@UMIA> eat?")

    async def post(bot: Bot, body: bytes, **how: Any) -> int:
        return (await bot.post(body, signed(body, **how))).status_code

    async with slack_app(url, tenant.key, model, slack) as bot:
        challenge = json.dumps({"type": "url_verification", "challenge": "abc"}).encode()
        assert (await bot.post(challenge, signed(challenge))).text == "abc"
        assert await post(bot, first, secret="another") == 403
        assert await post(bot, first, at=time.time() - 600) == 403
        assert (await bot.post(first, signed(second))).status_code == 403
        assert (await bot.post(first, {})).status_code == 403
        odd = {b"X-Slack-Request-Timestamp": "²".encode("latin-1"), b"X-Slack-Signature": b"v0=\xff"}
        assert (await bot.post(first, odd)).status_code == 403
        assert await post(bot, first) == 200
        assert await post(bot, event("1.15", "UBOT", "<@UBOT> hello", bot_id="B1")) == 200
    async with slack_app(url, tenant.key, model, slack) as bot:
        for _ in range(3):
            assert await post(bot, second) == 200
        await wait_for(slack.received, 1)
    async with slack_app(url, tenant.key, model, slack) as bot:
        assert await post(bot, second) == 200  # a late repetition, to another process
        assert await post(bot, event("1.3", "UMIA", "<@UBOT> thanks", channel_type="im", channel="D1")) == 200
        await wait_for(slack.received, 2)
    posted = [json.loads(one.body) for one in slack.received]
    assert posted == [{"channel": "C1", "text": "Risotto."}, {"channel": "D1", "text": "Risotto."}]
    assert slack.received[0].headers["authorization"] == "Bearer xoxb-1"
    assert len(model.chats) == 2
    assert "peanuts" in json.dumps(model.chats[0]["messages"])
    assert await stored(tenant, "slack-T1-C1") == [
        ("user", "UMIA", "I eat no peanuts."), ("user", "UJONAS", "<@UBOT> what can <@UMIA> eat?"),
        ("assistant", "UBOT", "Risotto."),
    ]  # fmt: skip


# n8n

NODE_FIELDS = {"id", "name", "type", "typeVersion", "position", "parameters"}
MORE_FIELDS = {"webhookId", "retryOnFail", "maxTries", "waitBetweenTries"}


def workflow() -> dict[str, Any]:
    return json.loads(WORKFLOW.read_text())


def in_order() -> list[dict[str, Any]]:
    """The nodes of the workflow, from its trigger on, as its connections say."""
    given = workflow()
    nodes = {node["name"]: node for node in given["nodes"]}
    (name,) = nodes.keys() - {
        one["node"] for outputs in given["connections"].values() for output in outputs["main"] for one in output
    }
    order = [nodes[name]]
    while (after := given["connections"].get(order[-1]["name"])) is not None:
        (((following),),) = after["main"]
        assert following == {"node": following["node"], "type": "main", "index": 0}
        order.append(nodes[following["node"]])
    assert len(order) == len(nodes)
    return order


async def resolved(value: str, outputs: dict[str, Any], before: str) -> Any:
    """The value of an expression of n8n, where `$json` is the output of the node before."""
    given = json.dumps({"value": value, "outputs": outputs, "before": before})
    running = await asyncio.create_subprocess_exec(
        installed_program("node"), str(PROGRAMS / "n8n_expression.mjs"), given, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await running.communicate()
    assert running.returncode == 0
    return json.loads(printed)


def test_the_workflow_has_the_form_that_n8n_imports() -> None:
    given = workflow()
    assert given.keys() == {"name", "nodes", "connections", "settings", "pinData", "active", "meta", "tags"}
    for node in given["nodes"]:
        assert node.keys() >= NODE_FIELDS
        assert node.keys() <= NODE_FIELDS | MORE_FIELDS, "an imported node has no credentials: they are chosen"
        assert "tk_" not in json.dumps(node)
    assert len({node["id"] for node in given["nodes"]}) == len(given["nodes"])
    assert [node["name"] for node in in_order()] == [
        "Webhook", "Before turn", "Model", "After turn", "Respond to Webhook",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["I eat no peanuts.", 'Say "}}" and \\n in\ntwo lines, 👋🏽'])
async def test_the_requests_of_the_workflow_store_a_turn_once(
    url: str, tenant: Client, slack: Receiver, text: str
) -> None:
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]}
    slack.body = json.dumps({"output": [answer]}).encode()
    said = {"session_id": "dinner", "user_id": "mia", "message_id": "1", "text": text}
    document = json.loads((ROOT / "openapi/openapi.json").read_text())
    for message_id, count in (("1", 2), ("1", 2), ("2", 4)):
        outputs: dict[str, Any] = {"Webhook": {"body": said | {"message_id": message_id}}}
        before = "Webhook"
        for node in in_order()[1:]:
            name, given = node["name"], node["parameters"]
            if node["type"] == "n8n-nodes-base.respondToWebhook":
                assert json.loads(await resolved(given["responseBody"], outputs, before)) == {"text": "Noted."}
                continue
            body = json.loads(await resolved(given["jsonBody"], outputs, before))
            path = given["url"].removeprefix("http://127.0.0.1:8765")
            if path != given["url"]:
                schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
                Draft202012Validator(schema | {"components": document["components"]}).validate(body)
                headers = {"Authorization": f"Bearer {tenant.key}"}
                async with httpx.AsyncClient() as client:
                    response = await client.request(given["method"], url + path, json=body, headers=headers)
            else:
                assert body["input"][-1]["content"] == text
                async with httpx.AsyncClient() as client:
                    response = await client.post(f"http://127.0.0.1:{slack.port}", json=body)
            assert response.status_code == 200, response.text
            outputs[name], before = response.json(), name
        (found,) = (await tenant.get("/v1/conversations", params={"external_id": "dinner"})).json()["data"]
        assert (found["turn_count"], found["owner"], found["project"]) == (count, "mia", "n8n")
    last = json.loads(slack.received[-1].body)["input"]
    assert [item["role"] for item in last] == ["system", "user", "assistant", "user"], "the model sees the first turn"
