"""A process that is killed in the middle of an answer leaves turns that another one gives up."""

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

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
            "stream_sweep_s": "0.2",
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
