"""The client for asyncio: `AsyncTurnkeep`, and its conversations."""

import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Final, Literal, Self, cast
from urllib.parse import urlsplit

from turnkeep_client.chat import AsyncModelCall, ChatExchange, ChatOptions, ChatResult
from turnkeep_client.following import follow
from turnkeep_client.generated import types
from turnkeep_client.generated.operations import AsyncOperations
from turnkeep_client.paging import async_items
from turnkeep_client.retries import RetryPolicy
from turnkeep_client.streaming import AsyncTurnWriter, StreamTransport
from turnkeep_client.transport import HttpTransport, Server

_URL: Final = "http://127.0.0.1:8765"
_API_PATHS: Final = ("/v1", "/mcp")
"""The client adds the path. That of OpenAI's API ends in `/v1`, too."""


def server_of(
    url: str | None, api_key: str | None, *, timeout_s: float, retries: RetryPolicy | None, reconnect_timeout_s: float
) -> Server:
    """Return the server that the arguments name, or else `TURNKEEP_URL` and `TURNKEEP_API_KEY`."""
    key = api_key or os.environ.get("TURNKEEP_API_KEY")
    if not key:
        raise ValueError("There is no API key: pass `api_key`, or set TURNKEEP_API_KEY.")
    address = (url or os.environ.get("TURNKEEP_URL") or _URL).rstrip("/")
    return Server(_checked(address), key, timeout_s, reconnect_timeout_s, retries or RetryPolicy())


def _checked(url: str) -> str:
    """Return a URL that can be one of a server. The error does not repeat it: it may be a key in the wrong place."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"The URL of the server must begin with http:// or https://, as in {_URL}.")
    if parts.path.endswith(_API_PATHS):
        raise ValueError(f"Leave the path out of the URL of the server, as in {_URL}.")
    return url


class AsyncTurnkeep:
    """A server and a key. `api` has all operations; `conversation` returns one conversation."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: RetryPolicy | None = None,
        reconnect_timeout_s: float = 120.0,
    ) -> None:
        self.transport = HttpTransport(
            server_of(url, api_key, timeout_s=timeout_s, retries=retries, reconnect_timeout_s=reconnect_timeout_s)
        )
        self.api = AsyncOperations(self.transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()

    async def conversation(
        self,
        external_id: str | None = None,
        *,
        owner: str | None = None,
        project: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, types.JsonValue] | None = None,
    ) -> "AsyncConversation":
        """Create a conversation, or return the one that has this `external_id`.

        Raises ConversationOwnedError if it has another owner than `owner`.
        """
        given = {"external_id": external_id, "owner": owner, "project": project, "title": title, "metadata": metadata}
        body = {name: value for name, value in given.items() if value is not None}
        made = await self.api.create_conversation(body=cast("types.ConversationCreate", body))
        return self.conversation_by_id(made["id"])

    def conversation_by_id(self, conversation_id: str) -> "AsyncConversation":
        """Return the conversation with this id; nothing is sent."""
        return AsyncConversation(self.transport, self.api, conversation_id)


class AsyncConversation:
    """One conversation of a server."""

    def __init__(self, transport: HttpTransport, api: AsyncOperations, conversation_id: str) -> None:
        self._transport, self._api, self.id = transport, api, conversation_id

    async def append(
        self,
        *turns: types.TurnInput,
        expected_seq: int | None = None,
        idempotency_key: str | None = None,
    ) -> types.AppendResult:
        """Append turns, all or none. It is sent again after a failure, and stores nothing twice."""
        body: types.Append = {"turns": list(turns)}
        if expected_seq is not None:
            body["expected_seq"] = expected_seq
        return await self._api.append_turns(self.id, body=body, idempotency_key=idempotency_key)

    async def context(self, token_budget: int, **options: object) -> types.Context:
        """Build the message list for a model call; `options` are the other fields of the request."""
        body = {"token_budget": token_budget, **options}
        return await self._api.build_context(self.id, body=cast("types.ContextRequest", body))

    def turns(self, *, limit: int = 100) -> AsyncIterator[types.Turn]:
        """Iterate over all live turns, oldest first; `limit` is the size of a page."""
        return async_items(self._api.list_turns, self.id, order="asc", limit=limit)

    async def chat(
        self,
        model_call: AsyncModelCall,
        message: str,
        *,
        actor: str | None = None,
        assistant: str | None = None,
        system: str | None = None,
        token_budget: int = 8_000,
        context: Mapping[str, object] | None = None,
    ) -> ChatResult:
        """Build the context, call the model, and store message and answer in one append.

        If another writer appended in the meantime, the context is built and the model is called again, at most three
        times. `model_call` takes messages in the format of OpenAI, and returns a text, a message, or several.
        """
        exchange = ChatExchange(
            self._api, self.id, message, ChatOptions(actor, assistant, system, token_budget, context)
        )
        while True:
            reply = model_call(await exchange.build())
            answer = await reply if inspect.isawaitable(reply) else reply
            if (result := await exchange.store(answer)) is not None:
                return result

    def stream(
        self,
        *,
        role: types.Role = "assistant",
        actor: str | None = None,
        model: str | None = None,
        supersedes: str | None = None,
        position: Literal["committed", "opened"] | None = None,
        id: str | None = None,  # noqa: A002 - the name of the field
        transport: StreamTransport = "auto",
    ) -> AsyncTurnWriter:
        """Return a writer of a turn whose text arrives in pieces. It continues after lost connections.

        `id`: the id of the turn, a new one by default. Of several writers with one id, one opens the turn; the others
        get a TurnkeepError with the code `turn_id_conflict`. With `position="opened"` the turn stands before all turns
        that are stored after its opening.
        """
        turn: types.OpenTurn = {"role": role}
        if id is not None:
            turn["id"] = id
        if actor is not None:
            turn["actor"] = actor
        if model is not None:
            turn["model"] = model
        if supersedes is not None:
            turn["supersedes"] = supersedes
        opening: types.Opening = {"turn": turn}
        if position is not None:
            opening["position"] = position
        return AsyncTurnWriter(self._transport.server, self._api, self.id, opening, transport=transport)

    def follow(self, *, after_rev: int | None = None, after_seq: int | None = None) -> AsyncGenerator[types.LiveEvent]:
        """Iterate over the events of the conversation, without an end. It continues after lost connections."""
        return follow(self._transport, self.id, after_rev=after_rev, after_seq=after_seq)
