"""`ask_agent`: a model of ours that answers from the memory of whoever asks, by the tools that it was granted.

What always holds: nothing but our instructions stands outside the fence (`ask_fence`); a tool that was not granted is
neither offered nor run; those that are run as the very caller, with its scopes and its agent; rounds, calls, texts and
time have limits. The query and the answer are stored in one append when there is an answer, or not at all.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from app.agents.ask.output_filter import Guard
from app.agents.ask.prompt_delimiters import INSTRUCTIONS, RULES, Round, request, turn_line
from app.agents.ask.tools import Granted, Toolbox
from app.agents.generation.renewal import renewed
from app.agents.tools.schemas import AgentAnswer, AgentTurn, AskAgent, agent_disabled
from app.agents.tools.tool import ToolServices
from app.conversations.schemas.conversations import ConversationCreate, Turn, TurnInput, content_text, turn_text
from app.conversations.schemas.frames import OpenTurn
from app.conversations.schemas.history import HistoryQuery
from app.core.errors import AppError, Unavailable
from app.core.ids import ConversationId, new_uuid, parse_id
from app.core.telemetry import get_logger
from app.formats.schemas import CanonicalTurn, Kind, Role
from app.governance.service import Governance
from app.providers.endpoint import Refused, require_model
from app.providers.schemas import ChatModel, ModelAnswer, ModelCall, ModelPurpose, Said
from app.settings import Settings
from app.tenancy.schemas import Caller, IdempotencyKey, Scope

ACTOR: Final = "ask_agent"
"""Who the answers are said by; also the member of their metadata that tells which tools were run."""
MAX_TURNS: Final = 10
MAX_CALLS: Final = 8
"""Tools that are run in one round; of more, the model is told so."""
_INLINE_CHARACTERS: Final = 20_000
WITHHELD: Final = "I cannot answer that."
UNFINISHED: Final = "I could not finish this. Please ask again, with less at once."


@dataclass(frozen=True, slots=True)
class AskOptions:
    """Settings of the agent. `tools` are the names that it was granted."""

    enabled: bool
    model: str | None
    instructions: str
    rounds: int
    timeout_s: float
    lease_s: float
    text_bytes: int
    tools: Sequence[str] | None
    memory_tools: bool

    @classmethod
    def of(cls, settings: Settings) -> "AskOptions":
        """As the settings say."""
        return cls(
            enabled=settings.enable_internal_agent,
            model=settings.internal_agent_model,
            instructions=settings.internal_agent_system_prompt or INSTRUCTIONS,
            rounds=settings.max_tool_calls,
            timeout_s=settings.internal_agent_timeout_s,
            lease_s=settings.stream_lease_s,
            text_bytes=settings.max_text_bytes,
            tools=settings.internal_agent_tools,
            memory_tools=settings.enable_memory_tools,
        )


@dataclass(slots=True)
class _Talk:
    """One query under way: what was found, and what it took."""

    caller: Caller
    conversation_id: ConversationId
    exists: bool
    query: str
    granted: Granted
    earlier: Sequence[str] = ()
    rounds: list[Round] = field(default_factory=list[Round])
    called: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    ran: list[str] = field(default_factory=list[str])
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    withheld: bool = False
    made: bool = False

    @property
    def used(self) -> list[str]:
        """The tools that were run, whatever came of it, each once."""
        return list(dict.fromkeys(self.ran))


class Asker:
    """Answers queries by a chat model with tools. Raises Unavailable where a tool is granted that there is not."""

    def __init__(
        self, services: ToolServices, *, governance: Governance, chat: ChatModel | None, options: AskOptions
    ) -> None:
        self._services = services
        self._governance = governance
        self._chat = chat
        self._options = options
        self._toolbox = Toolbox(services, names=options.tools, memory_tools=options.memory_tools)
        self._guard = Guard([options.instructions, RULES, *self._toolbox.texts()])
        self._log = get_logger()

    async def ask(self, caller: Caller, *, body: AskAgent, repeat: IdempotencyKey | None) -> tuple[AgentAnswer, bool]:
        """Answer, and store query and answer; says whether the same request had been answered before.

        Raises Forbidden without the scopes read and write, or `agent_disabled`; Unavailable `model_not_configured` and
        `agent_timeout`; NotFound for a conversation that is not there, and as the model does; nothing is stored then.
        """
        caller.require(Scope.WRITE)
        caller.require(Scope.READ)
        if not self._options.enabled:
            raise agent_disabled()
        if repeat is not None:
            repeat = repeat.by_agent(caller.agent)
            before = await self._services.conversations.replayed(caller, repeat=repeat)
            if before is not None:
                return await self._answer(caller, before.turns), True
        chat = require_model(self._chat)
        talk = _Talk(
            caller=caller,
            conversation_id=ConversationId(body.conversation_id or (repeat.made_id(caller) if repeat else new_uuid())),
            exists=body.conversation_id is not None,
            query=body.query,
            granted=self._toolbox.granted(caller),
        )
        if talk.exists:
            talk.earlier = await self._earlier(talk)
        try:
            if repeat is not None:
                return await self._answer(caller, await self._answer_once(chat, talk, repeat)), False
            stored = await self._store(talk, await self._response(chat, talk))
        except BaseException:
            # under a key the same request may be at it, or have been answered
            if talk.made and repeat is None:
                await self._take_back(talk)
            raise
        return await self._answer(caller, stored), False

    async def _response(self, chat: ChatModel, talk: _Talk) -> str:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._guarded(talk, await self._converse(chat, talk))
        except TimeoutError as error:
            detail = f"The agent had no answer within {self._options.timeout_s:g} seconds."
            raise Unavailable("agent_timeout", detail) from error
        if len(response.encode(errors="replace")) > self._options.text_bytes:
            detail = f"The agent's answer has more than the {self._options.text_bytes} bytes that a turn may have."
            raise Refused("answer_too_large", detail)
        return response

    # the model and its tools

    async def _converse(self, chat: ChatModel, talk: _Talk) -> str:
        """What the model says in the end: a text, once it calls no tool or may call none any more."""
        for number in range(self._options.rounds if talk.granted.offers else 0):
            said = await self._say(chat, talk, last=False)
            if not said.calls:
                return said.text
            calls, results = await self._run(talk, said.calls, prefix=str(number))
            talk.rounds.append(Round(calls, results))
        said = await self._say(chat, talk, last=True)
        return said.text or UNFINISHED

    async def _say(self, chat: ChatModel, talk: _Talk, *, last: bool) -> Said:
        messages = request(
            self._options.instructions, earlier=talk.earlier, query=talk.query, rounds=talk.rounds, last=last
        )
        answer: ModelAnswer[Said] = await chat.converse(
            messages,
            tools=() if last else talk.granted.offers,
            tenant_id=talk.caller.tenant_id,
            purpose=ModelPurpose.AGENT,
            model=self._options.model,
        )
        talk.prompt_tokens += answer.usage.prompt_tokens
        talk.completion_tokens += answer.usage.completion_tokens
        talk.model = answer.model
        return answer.value

    async def _run(
        self, talk: _Talk, calls: Sequence[ModelCall], *, prefix: str
    ) -> tuple[tuple[ModelCall, ...], tuple[str, ...]]:
        """Carry out the calls of a round, one after the other: as they are repeated to the model, and their texts."""
        made: list[ModelCall] = []
        results: list[str] = []
        for number, call in enumerate(calls):
            prepared = self._toolbox.prepare(
                talk.granted, call, conversation_id=talk.conversation_id, withhold=self._guard.reveals,
                many=number >= MAX_CALLS,
            )  # fmt: skip
            if prepared.needs_conversation:
                await self._ensure(talk)
            if prepared.call is not None and prepared.tool is not None:
                talk.ran.append(prepared.tool)
            text, status = await self._toolbox.run(prepared, talk.caller)
            made.append(ModelCall(f"{prefix}_{number}", prepared.name, prepared.arguments))
            results.append(text)
            talk.called.append({"tool": prepared.tool or "unknown", "status": status})
            self._log.info(
                "agent.tool_called", tool=prepared.tool or "unknown", code=status, conversation_id=talk.conversation_id
            )
        return tuple(made), tuple(results)

    async def _guarded(self, talk: _Talk, response: str) -> str:
        if len(response) <= _INLINE_CHARACTERS:
            talk.withheld = self._guard.reveals(response)
        else:
            talk.withheld = await asyncio.to_thread(self._guard.reveals, response)
        if talk.withheld:
            self._log.warning("agent.withheld", conversation_id=talk.conversation_id)
        return WITHHELD if talk.withheld else response

    # the conversation

    async def _earlier(self, talk: _Talk) -> list[str]:
        turns = await self._services.conversations.recent(talk.caller, talk.conversation_id, limit=MAX_TURNS)
        return [_line(turn) for turn in turns if turn.kind is not Kind.COMPACTION]

    async def _ensure(self, talk: _Talk) -> None:
        """Make the conversation, where none was named and nothing has needed it yet."""
        if not talk.exists:
            body = ConversationCreate(id=talk.conversation_id)
            await self._services.conversations.create(talk.caller, body=body, repeat=None)
            talk.exists = talk.made = True

    async def _take_back(self, talk: _Talk) -> None:
        """Delete the conversation that was made for this query alone, unless something was said in it."""
        with suppress(AppError):
            await self._governance.delete_unused(talk.caller, talk.conversation_id)

    async def _answer_once(self, chat: ChatModel, talk: _Talk, repeat: IdempotencyKey) -> Sequence[Turn]:
        """Answer and store, while nobody else is at the same request: its tools are run once.

        Raises Busy `resource_busy` while somebody is, in any process, before a model is asked.
        """
        await self._ensure(talk)
        exchanges = self._services.conversations.streams.exchanges
        exchange = await exchanges.open(
            talk.caller,
            talk.conversation_id,
            messages=[("", _query_turn(talk))],
            answer=OpenTurn(role=Role.ASSISTANT, actor=ACTOR),
            repeat=repeat,
        )
        try:
            async with renewed(exchanges, exchange, lease_s=self._options.lease_s):
                response = await self._response(chat, talk)
                turns = await exchanges.commit(talk.caller, exchange, answer=_answer_turn(talk, response))
        except BaseException as error:
            reason = error.code if isinstance(error, AppError) else "internal_error"
            await exchanges.abort(talk.caller, exchange, reason=reason)
            raise
        self._log_answer(talk)
        return turns

    async def _store(self, talk: _Talk, response: str) -> Sequence[Turn]:
        await self._ensure(talk)
        turns = [_query_turn(talk), _answer_turn(talk, response)]
        result, _, _ = await self._services.conversations.append(talk.caller, talk.conversation_id, turns=turns)
        self._log_answer(talk)
        return result.turns

    def _log_answer(self, talk: _Talk) -> None:
        self._log.info("agent.answered", conversation_id=talk.conversation_id, count=len(talk.called))

    async def _answer(self, caller: Caller, stored: Sequence[Turn]) -> AgentAnswer:
        """The answer from the rows: what it said, the tools it names, and the turns up to it."""
        answer = stored[-1]
        page = await self._services.conversations.history(
            caller,
            ConversationId(parse_id(answer.conversation_id)),
            query=HistoryQuery(before=(answer.position or 0) + 1, limit=MAX_TURNS),
        )
        turns = [turn for turn in page.data if turn.kind is not Kind.COMPACTION and turn.erased_at is None]
        return AgentAnswer(
            conversation_id=answer.conversation_id,
            response=turn_text(answer),
            tools_used=_tools_used(answer),
            history=[_view(turn) for turn in turns],
        )


def _query_turn(talk: _Talk) -> TurnInput:
    return TurnInput(role=Role.USER, actor=talk.caller.agent_id, content=talk.query)


def _answer_turn(talk: _Talk, response: str) -> TurnInput:
    account: dict[str, object] = {"tools_used": talk.used, "calls": talk.called, "withheld": talk.withheld}
    return TurnInput.model_validate(
        {
            "role": Role.ASSISTANT,
            "actor": ACTOR,
            "content": response,
            "model": talk.model[:256],
            "usage": {"prompt_tokens": talk.prompt_tokens, "completion_tokens": talk.completion_tokens},
            "metadata": {ACTOR: account},
        }
    )


def _line(turn: CanonicalTurn) -> str:
    said = [content_text(turn.content), *(content_text(result.content) for result in turn.tool_results)]
    return turn_line(
        at=turn.occurred_at,
        actor=turn.actor,
        role=turn.role.value,
        text="\n".join(text for text in said if text),
        calls=[call.name for call in turn.tool_calls],
    )


def _view(turn: Turn) -> AgentTurn:
    return AgentTurn(
        id=turn.id, role=turn.role, actor=turn.actor, content=turn_text(turn), occurred_at=turn.occurred_at
    )


def _tools_used(answer: Turn) -> list[str]:
    account = answer.metadata.get(ACTOR)
    used = account.get("tools_used") if isinstance(account, Mapping) else None
    return [name for name in used if isinstance(name, str)] if isinstance(used, list) else []
