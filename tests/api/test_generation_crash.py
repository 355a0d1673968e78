"""A process that is killed in the middle of an answer leaves turns that another one gives up."""

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.test_processes import Process, data, folder
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, says

__all__ = ["data", "folder"]


@pytest.mark.slow
async def test_kill_9_in_the_middle_of_an_answer_commits_none_of_it(data: Path) -> None:
    async with open_fake_chat() as fake:
        fake.reply = says("one two three four", stops_after=3)
        settings = {
            "llm_model": CHAT_MODEL, "llm_base_url": fake.url, "embedder": "none", "stream_lease_s": "1",
        }  # fmt: skip
        first, second = (Process(data, **settings).start() for _ in range(2))
        await asyncio.to_thread(lambda: [process.wait() for process in (first, second)])
        key = first.key
        _, made = await asyncio.to_thread(first.call, "POST", "/v1/conversations", {}, key)
        base = f"http://127.0.0.1:{first.port}/openai/v1"
        async with openai.AsyncOpenAI(api_key=key, base_url=base, max_retries=0) as ai:
            stream = await ai.chat.completions.create(
                model=CHAT_MODEL, messages=[{"role": "user", "content": "hi"}], stream=True,
                extra_body={"conversation_id": made["id"]},
            )  # fmt: skip
            said = ""
            async for piece in stream:
                said += piece.choices[0].delta.content or ""
                if len(said) >= 10:
                    break
            await asyncio.sleep(0.6)  # a debounce: what there is becomes durable
            assert first.serving is not None
            first.serving.send_signal(signal.SIGKILL)
        path = f"/v1/conversations/{made['id']}"
        for _ in range(600):
            _, verified = await asyncio.to_thread(second.call, "GET", f"{path}/verify", None, key)
            live = await asyncio.to_thread(pending, second.port, path, key)
            if not live:
                break
            await asyncio.sleep(0.1)
        assert live == []
        assert verified["valid"] is True
        _, page = await asyncio.to_thread(second.call, "GET", f"{path}/turns", None, key)
        assert page["data"] == []
        fake.reply = says("Again.")
        body = {"conversation_id": made["id"], "messages": [{"role": "user", "content": "hi"}]}
        status, answer = await asyncio.to_thread(second.call, "POST", "/v1/generate", body, key)
        assert (status, answer["response"]) == (200, "Again.")
        assert [turn["seq"] for turn in answer["turns"]] == [1, 2]
        await asyncio.to_thread(second.stop)


@pytest.mark.slow
async def test_kill_9_in_the_middle_of_a_response_leaves_it_failed_with_its_text(data: Path) -> None:
    async with open_fake_chat() as fake:
        settings = {
            "llm_model": CHAT_MODEL, "llm_base_url": fake.url, "embedder": "none", "stream_lease_s": "1",
        }  # fmt: skip
        first, second = (Process(data, **settings).start() for _ in range(2))
        await asyncio.to_thread(lambda: [process.wait() for process in (first, second)])
        bases = [f"http://127.0.0.1:{process.port}/openai/v1" for process in (first, second)]
        async with (
            openai.AsyncOpenAI(api_key=first.key, base_url=bases[0], max_retries=0) as dying,
            openai.AsyncOpenAI(api_key=first.key, base_url=bases[1], max_retries=0) as living,
        ):
            before = await dying.responses.create(model=CHAT_MODEL, input="I am Ada.")
            fake.reply = says("one two three four", stops_after=3)
            stream: Any = await dying.responses.create(
                model=CHAT_MODEL, input="count", previous_response_id=before.id, stream=True
            )
            broken, text = (await anext(stream)).response.id, ""
            while len(text) < len("one two"):
                text += getattr(await anext(stream), "delta", "")
            await asyncio.sleep(0.6)  # a debounce: what there is becomes durable
            assert first.serving is not None
            first.serving.send_signal(signal.SIGKILL)
            left = await living.responses.retrieve(broken)
            for _ in range(600):
                if left.status != "in_progress":
                    break
                await asyncio.sleep(0.1)
                left = await living.responses.retrieve(broken)
            assert left.status == "failed"
            assert left.output_text.startswith(text)
            fake.reply = says("Ada.")
            after = await living.responses.create(model=CHAT_MODEL, input="Who am I?", previous_response_id=before.id)
            sent = [message["content"] for message in fake.chats[-1]["messages"]]
            assert sent == ["I am Ada.", "Hello.", "Who am I?"]
            assert after.conversation == before.conversation
        await asyncio.to_thread(second.stop)


def pending(port: int, path: str, key: str) -> list[object]:
    """The open turns that a new follower is shown."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}/events", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return snapshot(iter(answer))["pending"]  # type: ignore[no-any-return,return-value]


def snapshot(lines: Iterator[bytes]) -> dict[str, object]:
    for line in lines:
        if line.startswith(b"data:"):
            return json.loads(line[5:])
    raise AssertionError("no snapshot came")
