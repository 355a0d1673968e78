"""Writes an answer to a conversation while it arrives, across lost connections: see live-chat.md."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

TURN = {"role": "assistant", "actor": "planner", "model": "some-model"}
PIECE = 16_000  # characters: never more than the 64 KiB that a chunk may have


async def ask(socket: ClientConnection, **frame: object) -> dict:
    """Send a frame and return its ack. Acks without an id, for text that became durable, are skipped."""
    await socket.send(json.dumps({"id": "1", **frame}))
    while True:
        answer = json.loads(await socket.recv())
        if answer.get("id") == "1":
            if answer.get("retryable"):
                raise ConnectionError(answer["code"])  # connect again, and continue from the durable text
            return answer


async def write(url: str, key: str, conversation: str, words: AsyncIterator[str]) -> dict:
    """Write an answer while it arrives, also across lost connections. Return the stored turn."""
    address = f"{url.replace('http', 'ws', 1)}/v1/conversations/{conversation}/live"
    headers = {"Authorization": f"Bearer {key}"}
    turn_id, writer = str(uuid.uuid4()), str(uuid.uuid4())
    text, opened, over = "", False, False
    while True:
        try:
            async with connect(address, additional_headers=headers) as socket:
                if opened:  # text that was not durable is sent again
                    started = await ask(socket, type="resume", turn_id=turn_id, writer=writer)
                else:  # the id is chosen here, so a repeat opens no second turn
                    started = await ask(socket, type="open", turn=TURN | {"id": turn_id}, writer=writer)
                if started["type"] == "error" and not (over and started["code"] == "turn_committed"):
                    raise RuntimeError(started["code"])
                opened, sent = True, started.get("durable_offset", len(text))
                while not over or sent < len(text):
                    if sent == len(text):
                        word = await anext(words, None)
                        text, over = text + (word or ""), word is None
                    else:
                        piece = text[sent : sent + PIECE]
                        taken = await ask(socket, type="chunk", turn_id=turn_id, offset=sent, delta=piece)
                        if taken["type"] == "error":
                            raise RuntimeError(taken["code"])
                        sent += len(piece)
                done = await ask(socket, type="commit", turn_id=turn_id, length=len(text))
                if done["type"] == "error":
                    raise RuntimeError(done["code"])
                return done["turn"]
        except (ConnectionClosed, OSError):
            await asyncio.sleep(0.5)
