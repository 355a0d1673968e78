"""The client for programs without asyncio: `Turnkeep`, its conversations and writers.

It runs the same code as `AsyncTurnkeep`, in a thread of its own.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self

from turnkeep_client.async_client import AsyncConversation, AsyncTurnkeep
from turnkeep_client.chat import ChatExchange, ChatOptions, ChatResult, ModelCall
from turnkeep_client.generated import types
from turnkeep_client.generated.operations import AsyncOperations, AsyncTransport, Operations, Repeat, Value
from turnkeep_client.paging import items
from turnkeep_client.portal import Portal
from turnkeep_client.retries import RetryPolicy
from turnkeep_client.streaming import AsyncTurnWriter, StreamTransport


class Turnkeep:
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
        self._portal = Portal()
        self._client = AsyncTurnkeep(
            url, api_key, timeout_s=timeout_s, retries=retries, reconnect_timeout_s=reconnect_timeout_s
        )
        self.api = Operations(_PortalTransport(self._portal, self._client.transport))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and stop the thread."""
        self._portal.run(self._client.aclose())
        self._portal.close()

    def conversation(
        self,
        external_id: str | None = None,
        *,
        owner: str | None = None,
        project: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, types.JsonValue] | None = None,
    ) -> "Conversation":
        """Create a conversation, or return the one that has this `external_id`.

        Raises ConversationOwnedError if it has another owner than `owner`.
        """
        found = self._portal.run(
            self._client.conversation(external_id, owner=owner, project=project, title=title, metadata=metadata)
        )
        return Conversation(self._portal, self.api, self._client.api, found)

    def conversation_by_id(self, conversation_id: str) -> "Conversation":
        """Return the conversation with this id; nothing is sent."""
        found = self._client.conversation_by_id(conversation_id)
        return Conversation(self._portal, self.api, self._client.api, found)


class Conversation:
    """One conversation of a server."""

    def __init__(
        self, portal: Portal, api: Operations, async_api: AsyncOperations, conversation: AsyncConversation
    ) -> None:
        self._portal, self._api, self._async_api, self._conversation = portal, api, async_api, conversation
        self.id = conversation.id

    def append(
        self,
        *turns: types.TurnInput,
        expected_seq: int | None = None,
        idempotency_key: str | None = None,
    ) -> types.AppendResult:
        """Append turns, all or none. It is sent again after a failure, and stores nothing twice."""
        return self._portal.run(
            self._conversation.append(*turns, expected_seq=expected_seq, idempotency_key=idempotency_key)
        )

    def context(self, token_budget: int, **options: object) -> types.Context:
        """Build the message list for a model call; `options` are the other fields of the request."""
        return self._portal.run(self._conversation.context(token_budget, **options))

    def turns(self, *, limit: int = 100) -> Iterator[types.Turn]:
        """Iterate over all live turns, oldest first; `limit` is the size of a page."""
        return items(self._api.list_turns, self.id, order="asc", limit=limit)

    def chat(
        self,
        model_call: ModelCall,
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
        options = ChatOptions(actor, assistant, system, token_budget, context)
        exchange = ChatExchange(self._async_api, self.id, message, options)
        while True:
            # the model is called in the caller's thread
            reply = model_call(self._portal.run(exchange.build()))
            if (result := self._portal.run(exchange.store(reply))) is not None:
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
    ) -> "TurnWriter":
        """Return a writer of a turn whose text arrives in pieces. It continues after lost connections.

        `id`: the id of the turn, a new one by default. Of several writers with one id, one opens the turn; the others
        get a TurnkeepError with the code `turn_id_conflict`. With `position="opened"` the turn stands before all turns
        that are stored after its opening.
        """
        writer = self._conversation.stream(
            role=role,
            actor=actor,
            model=model,
            supersedes=supersedes,
            position=position,
            id=id,
            transport=transport,
        )
        return TurnWriter(self._portal, writer)

    def follow(self, *, after_rev: int | None = None, after_seq: int | None = None) -> Generator[types.LiveEvent]:
        """Iterate over the events of the conversation, without an end. It continues after lost connections."""
        events = self._conversation.follow(after_rev=after_rev, after_seq=after_seq)

        async def following() -> types.LiveEvent | None:
            return await anext(events, None)

        try:
            while (event := self._portal.run(following())) is not None:
                yield event
        finally:
            self._portal.run(events.aclose())


class TurnWriter:
    """An open turn. Use it as a context manager: it commits at the end, and aborts after an exception."""

    def __init__(self, portal: Portal, writer: AsyncTurnWriter) -> None:
        self._portal, self._writer = portal, writer

    @property
    def turn_id(self) -> str:
        """The id of the turn, chosen by this client."""
        return self._writer.turn_id

    @property
    def turn(self) -> types.Turn | None:
        """The committed turn."""
        return self._writer.turn

    @property
    def reconnections(self) -> int:
        """How often the turn was continued over another connection."""
        return self._writer.reconnections

    def __enter__(self) -> Self:
        self._portal.run(self._writer.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._writer.__aexit__(kind, error, trace))

    def write(self, delta: str, *, part: str = "content") -> None:
        """Add text. Returns when it is taken into memory; waits if the connection is much slower than the writer."""
        self._portal.run(self._writer.write(delta, part=part))

    def write_all(self, texts: Iterable[str]) -> types.Turn:
        """Write all texts, and commit the turn. Opens it if it is not open; aborts it if the iterable raises."""
        with self:
            for text in texts:
                self.write(text)
        return self.commit()

    def commit(self, **ending: object) -> types.Turn:
        """Commit the turn, and return it. Takes `usage`, `model`, `metadata` and `tool_calls`."""
        return self._portal.run(self._writer.commit(**ending))

    def abort(self, reason: str = "") -> None:
        """Abort the turn: its text is in no context."""
        self._portal.run(self._writer.abort(reason))


class _PortalTransport:
    """Sends the requests of code without an event loop."""

    def __init__(self, portal: Portal, transport: AsyncTransport) -> None:
        self._portal, self._transport = portal, transport

    def request(
        self,
        method: str,
        path: str,
        repeat: Repeat,
        *,
        query: dict[str, Value],
        headers: dict[str, str | None],
        body: object = None,
        is_bytes: bool = False,
    ) -> object:
        """Send a request, and wait for its answer."""
        sending = self._request(method, path, repeat, query, headers, body, is_bytes=is_bytes)
        return self._portal.run(sending)

    async def _request(
        self,
        method: str,
        path: str,
        repeat: Repeat,
        query: dict[str, Value],
        headers: dict[str, str | None],
        body: object,
        *,
        is_bytes: bool,
    ) -> object:
        return await self._transport.request(
            method, path, repeat, query=query, headers=headers, body=body, is_bytes=is_bytes
        )
