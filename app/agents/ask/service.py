"""`ask_agent`: a chat model answers from the caller's memory with the tools that are granted to it.

Invariants: only our instructions are outside of the delimiters (`prompt_delimiters`). A tool that is not granted is
neither offered nor run. Tools run with the caller's own scopes and agent. Rounds, calls, texts and time are limited.
A call that the model writes as text is run like any other, and is never an answer. What is left of the time is for the
answer: no round begins that would take it, by the longest one so far. The query and the answer are stored in one
append, or not at all.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from app.agents.ask.output_filter import OutputFilter
from app.agents.ask.prompt_delimiters import INSTRUCTIONS, RULES, ToolRound, build_messages, turn_line
from app.agents.ask.tools import GrantedTools, ToolRunner, with_text_calls
from app.agents.generation.renewal import renewed
from app.agents.tools.schemas import AgentAnswer, AgentTurn, AskAgent, agent_disabled
from app.agents.tools.tool import ToolServices
from app.audit.service import AuditTrail
from app.conversations.schemas.conversations import ConversationCreate, Turn, TurnInput, content_text, turn_text
from app.conversations.schemas.frames import OpenTurn
from app.conversations.schemas.history import HistoryQuery
from app.conversations.service import Exchanges
from app.core.errors import AppError, Unavailable
from app.core.ids import ConversationId, new_uuid, parse_id
from app.core.telemetry import get_logger
from app.formats.schemas import CanonicalTurn, Kind, Role
from app.governance.service import Governance
from app.providers.schemas import ModelAnswer, ModelCall, ModelPurpose, ModelReply, Refused
from app.providers.service import ChatModel, require_model
from app.settings import Settings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope

ACTOR: Final = "ask_agent"
"""Actor of the answers, and the key of their metadata that lists the tools that were run."""
MAX_TURNS: Final = 10
MAX_CALLS: Final = 8
"""Maximum number of tools that are run in one round; further calls are refused with a text for the model."""
_INLINE_CHARACTERS: Final = 20_000
WITHHELD: Final = "I cannot answer that."
UNFINISHED: Final = "I could not finish this. Please ask again, with less at once."
NOT_STORED: Final = "(Nothing was stored.)"
"""Follows an answer if all calls that store something have failed, also if the model says that it has stored it."""


@dataclass(slots=True)
class _AskRun:
    """State of one query: the tool results so far, and the tokens used."""

    caller: Caller
    conversation_id: ConversationId
    exists: bool
    query: str
    granted: GrantedTools
    earlier: Sequence[str] = ()
    rounds: list[ToolRound] = field(default_factory=list[ToolRound])
    called: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    ran: list[str] = field(default_factory=list[str])
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    withheld: bool = False
    created: bool = False
    is_corrected: bool = False
    ends_at: float = math.inf
    longest_call_s: float = 0.0

    def has_time_for(self, model_calls: int) -> bool:
        """Return whether so many more calls of the model end in time, if they take as long as the longest so far."""
        return time.monotonic() + model_calls * self.longest_call_s <= self.ends_at

    @property
    def has_stored_nothing(self) -> bool:
        """Whether tools that write were called, and all these calls failed."""
        tools = self.granted.tools
        writes = [call["status"] for call in self.called if call["tool"] in tools and tools[call["tool"]].writes]
        return bool(writes) and "ok" not in writes

    @property
    def shown(self) -> list[str]:
        """Texts of people and tools that the model has read."""
        return [self.query, *self.earlier, *(text for tool_round in self.rounds for text in tool_round.results)]

    @property
    def used(self) -> list[str]:
        """The tools that were run, with or without success, each once."""
        return list(dict.fromkeys(self.ran))


class AskService:
    """Answers queries by a chat model with tools. Raises Unavailable if a granted tool does not exist."""

    def __init__(
        self,
        services: ToolServices,
        *,
        exchanges: Exchanges,
        governance: Governance,
        audit: AuditTrail,
        chat: ChatModel | None,
        settings: Settings,
    ) -> None:
        self._services = services
        self._exchanges = exchanges
        self._governance = governance
        self._chat = chat
        self._settings = settings.tools
        self._max_bytes = settings.limits.max_text_bytes
        self._lease_s = settings.streams.stream_lease_s
        self._instructions = settings.tools.internal_agent_system_prompt or INSTRUCTIONS
        self._tool_runner = ToolRunner(services, audit=audit, settings=settings.tools)
        self._output_filter = OutputFilter([self._instructions, RULES, *self._tool_runner.texts()])
        self._log = get_logger()

    async def ask(
        self, caller: Caller, *, body: AskAgent, idempotency_key: IdempotencyKey | None = None
    ) -> RequestResult[AgentAnswer]:
        """Answer the query, and store query and answer.

        Raises Forbidden without the scopes read and write, or `agent_disabled`; Unavailable `model_not_configured` and
        `agent_timeout`; Refused `agent_call_invalid`; NotFound for an unknown conversation; the errors of the model.
        Nothing is stored then.
        """
        caller.require(Scope.WRITE)
        caller.require(Scope.READ)
        if not self._settings.enable_internal_agent:
            raise agent_disabled()
        new_id = new_uuid()
        if idempotency_key is not None:
            idempotency_key = idempotency_key.for_agent(caller.agent)
            new_id = idempotency_key.derive_id(caller)
            before = await self._services.conversations.find_result(caller, idempotency_key=idempotency_key)
            if before is not None:
                return before.with_value(await self._answer(caller, before.value.turns))
        chat = require_model(self._chat)
        conversation_id, turns = ConversationId(body.conversation_id or new_id), list[CanonicalTurn]()
        if body.conversation_id is not None:
            turns = await self._services.conversations.recent(caller, conversation_id, limit=MAX_TURNS)
        run = _AskRun(
            caller=caller,
            conversation_id=conversation_id,
            exists=body.conversation_id is not None,
            query=body.query,
            granted=self._tool_runner.granted(caller),
            earlier=[_line(turn) for turn in turns if turn.kind is not Kind.COMPACTION],
        )
        try:
            if idempotency_key is not None:
                stored = await self._answer_once(chat, run, idempotency_key)
            else:
                stored = await self._store(run, await self._response(chat, run))
        except BaseException:
            # with an idempotency key, another request may be using the conversation
            if run.created and idempotency_key is None:
                with suppress(AppError):
                    await self._governance.delete_unused(run.caller, run.conversation_id)
            raise
        return RequestResult(await self._answer(caller, stored), is_new=True)

    async def _response(self, chat: ChatModel, run: _AskRun) -> str:
        limit_s = self._settings.internal_agent_timeout_s
        run.ends_at = time.monotonic() + limit_s
        try:
            async with asyncio.timeout(limit_s):
                response = await self._filtered(run, await self._run_rounds(chat, run))
                if run.has_stored_nothing and not run.withheld:
                    response = f"{response}\n\n{NOT_STORED}"
        except TimeoutError as error:
            detail = f"The answer of the agent needs more than its {limit_s:g} s (TURNKEEP_INTERNAL_AGENT_TIMEOUT_S)."
            raise Unavailable("agent_timeout", detail) from error
        if len(response.encode(errors="replace")) > self._max_bytes:
            detail = f"The agent's answer has more than the {self._max_bytes} bytes that a turn may have."
            raise Refused("answer_too_large", detail)
        return response

    # the model and its tools

    async def _run_rounds(self, chat: ChatModel, run: _AskRun) -> str:
        """Return the model's last text: it calls no tool, or has used all its rounds, or there is time for no more."""
        for number in range(self._settings.max_tool_calls if run.granted.offers else 0):
            if not run.has_time_for(2):
                break
            said = await self._reply(chat, run, is_last=False)
            if not said.calls:
                return said.text
            calls, results = await self._run(run, said.calls, prefix=str(number))
            run.rounds.append(ToolRound(calls, results))
        said = await self._reply(chat, run, is_last=True)
        return said.text or UNFINISHED

    async def _reply(self, chat: ChatModel, run: _AskRun, *, is_last: bool) -> ModelReply:
        """Return the model's reply. A call that was written as text is one of its calls.

        The model is asked once more, if it has written a call that cannot be read. Raises Refused `agent_call_invalid`
        if it does so again.
        """
        reply = with_text_calls(await self._call_model(chat, run, is_last=is_last), run.granted, shown=run.shown)
        if reply is None and not run.is_corrected:
            run.is_corrected = True
            again = await self._call_model(chat, run, is_last=is_last, is_correction=True)
            reply = with_text_calls(again, run.granted, shown=run.shown)
        if reply is None:
            self._log.warning("agent.failed", code="agent_call_invalid", conversation_id=run.conversation_id)
            raise Refused("agent_call_invalid", "The chat model wrote a tool call that cannot be read, twice.")
        return reply

    async def _call_model(
        self, chat: ChatModel, run: _AskRun, *, is_last: bool, is_correction: bool = False
    ) -> ModelReply:
        if not run.has_time_for(1):
            raise TimeoutError  # what the endpoint reads now would be paid for and given up
        messages = build_messages(
            self._instructions,
            earlier=run.earlier,
            query=run.query,
            rounds=run.rounds,
            is_last_round=is_last,
            named_after_failure=tuple(run.granted.tools) if is_correction else (),
        )
        began = time.monotonic()
        answer: ModelAnswer[ModelReply] = await chat.converse(
            messages,
            tools=() if is_last else run.granted.offers,
            tenant_id=run.caller.tenant_id,
            purpose=ModelPurpose.AGENT,
            model=self._settings.internal_agent_model,
            timeout_s=self._settings.internal_agent_timeout_s,  # of which `_response` leaves it the rest
        )
        run.longest_call_s = max(run.longest_call_s, time.monotonic() - began)
        run.prompt_tokens += answer.usage.prompt_tokens
        run.completion_tokens += answer.usage.completion_tokens
        run.model = answer.model
        return answer.value

    async def _run(
        self, run: _AskRun, calls: Sequence[ModelCall], *, prefix: str
    ) -> tuple[tuple[ModelCall, ...], tuple[str, ...]]:
        """Run the calls of a round in order; return them as they are repeated to the model, and their result texts."""
        created: list[ModelCall] = []
        results: list[str] = []
        for number, call in enumerate(calls):
            prepared = self._tool_runner.prepare(
                run.granted,
                call,
                conversation_id=run.conversation_id,
                reveals_prompt=self._output_filter.reveals,
                is_over_limit=number >= MAX_CALLS,
            )
            if prepared.needs_conversation:
                await self._ensure(run)
            if prepared.call is not None and prepared.tool is not None:
                run.ran.append(prepared.tool)
            text, status = await self._tool_runner.run(prepared, run.caller)
            created.append(ModelCall(f"{prefix}_{number}", prepared.name, prepared.arguments))
            results.append(text)
            run.called.append({"tool": prepared.tool or "unknown", "status": status})
            self._log.info(
                "agent.tool_called", tool=prepared.tool or "unknown", code=status, conversation_id=run.conversation_id
            )
        return tuple(created), tuple(results)

    async def _filtered(self, run: _AskRun, response: str) -> str:
        if len(response) <= _INLINE_CHARACTERS:
            run.withheld = self._output_filter.reveals(response)
        else:
            run.withheld = await asyncio.to_thread(self._output_filter.reveals, response)
        if run.withheld:
            self._log.warning("agent.withheld", conversation_id=run.conversation_id)
        return WITHHELD if run.withheld else response

    # the conversation

    async def _ensure(self, run: _AskRun) -> None:
        """Create the conversation, if the query named none and it does not exist yet."""
        if not run.exists:
            body = ConversationCreate(id=run.conversation_id)
            await self._services.conversations.create(run.caller, body=body)
            run.exists = run.created = True

    async def _answer_once(self, chat: ChatModel, run: _AskRun, idempotency_key: IdempotencyKey) -> Sequence[Turn]:
        """Answer and store, with a lock by the idempotency key: the tools run once.

        Raises Busy `resource_busy` before the model is called, while another process runs the same request.
        """
        await self._ensure(run)
        exchanges = self._exchanges
        exchange = await exchanges.open(
            run.caller,
            run.conversation_id,
            messages=[_query_turn(run)],
            answer=OpenTurn(role=Role.ASSISTANT, actor=ACTOR),
            idempotency_key=idempotency_key,
        )
        try:
            async with renewed(exchanges, exchange, lease_s=self._lease_s):
                response = await self._response(chat, run)
                turns = await exchanges.commit(run.caller, exchange, answer=_answer_turn(run, response))
        except BaseException as error:
            reason = error.code if isinstance(error, AppError) else "internal_error"
            await exchanges.abort(run.caller, exchange, reason=reason)
            raise
        self._log_answer(run)
        return turns

    async def _store(self, run: _AskRun, response: str) -> Sequence[Turn]:
        await self._ensure(run)
        turns = [_query_turn(run), _answer_turn(run, response)]
        stored = await self._services.conversations.append(run.caller, run.conversation_id, turns=turns)
        self._log_answer(run)
        return stored.value.turns

    def _log_answer(self, run: _AskRun) -> None:
        self._log.info("agent.answered", conversation_id=run.conversation_id, count=len(run.called))

    async def _answer(self, caller: Caller, stored: Sequence[Turn]) -> AgentAnswer:
        """Return the answer of the stored turns, with its tools and the turns up to it."""
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


def _query_turn(run: _AskRun) -> TurnInput:
    return TurnInput(role=Role.USER, actor=run.caller.agent_id, content=run.query)


def _answer_turn(run: _AskRun, response: str) -> TurnInput:
    account: dict[str, object] = {"tools_used": run.used, "calls": run.called, "withheld": run.withheld}
    return TurnInput.model_validate(
        {
            "role": Role.ASSISTANT,
            "actor": ACTOR,
            "content": response,
            "model": run.model[:256],
            "usage": {"prompt_tokens": run.prompt_tokens, "completion_tokens": run.completion_tokens},
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
