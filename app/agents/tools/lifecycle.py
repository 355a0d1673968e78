"""The tools of the turn lifecycle: calls of an agent's host around each turn."""

from typing import Final, TypeVar

from pydantic import ConfigDict, RootModel

from app.agents.lifecycle.schemas import (
    AfterTurn,
    BeforeTurn,
    Maintained,
    RunTurn,
    SessionRequest,
    TreeRequest,
    TurnContext,
    TurnDone,
    TurnPrepared,
)
from app.agents.lifecycle.service import Lifecycle
from app.agents.tools.answers import ToolAnswer, fit_list
from app.agents.tools.schemas import TreeAnswer
from app.agents.tools.tool import ADDS, READER_AND_WRITER, READS, Group, Tool, ToolServices, tool
from app.tenancy.schemas import Caller

_AGAIN: Final = {"idempotent_hint": True}
_BYTES_A_TOKEN: Final = 16
"""Bytes of an answer for each token of its items: it has them twice, as an object and as text."""
_TurnT = TypeVar("_TurnT", BeforeTurn, RunTurn)
_ERASES: Final = {"read_only_hint": False, "destructive_hint": True, "open_world_hint": False} | _AGAIN


class TurnRun(RootModel[TurnPrepared | TurnDone]):
    """The result of `memory_run_turn`: the context with a token, or the confirmation that the turn is stored."""

    model_config = ConfigDict(json_schema_extra={"type": "object"})


def lifecycle_tools() -> tuple[Tool, ...]:
    """Return the tools, in the order of a turn."""
    return (*_turn_tools(), *_session_tools())


def _turn_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "memory_before_turn",
            BeforeTurn,
            TurnContext,
            lambda services, caller, body: _lifecycle(services).before_turn(
                caller, request=_within_answer(services, body)
            ),
            title="Context before a turn",
            description=(
                "Call this before each model call of a session: it gives `input_items`, what to send to the model, as"
                " OpenAI Responses items that never count more than `max_input_tok`: `base_instructions`, a summary of"
                " what is older, the newest turns, what is known and fits, and `current_input` last. Name"
                " `max_input_tok`: without it, the items fit a short answer. It stores nothing."
                " `session_id` is your name for the session, `turn_id` for the turn."
            ),
            group=Group.MEMORY,
            hints=READS,
            is_cut=False,
        ),
        tool(
            "memory_after_turn",
            AfterTurn,
            TurnDone,
            lambda services, caller, body: _lifecycle(services).after_turn(caller, request=body),
            title="Store a turn",
            description=(
                "Call this after each model call of a session, with the same `turn_id`: `input_items` is what came new"
                " from the user or from tools in this turn, not the whole context, and `output_items` what the model"
                " gave. The turn is stored exactly once, however often this is called; `resource_busy` means to call"
                " again."
            ),
            group=Group.MEMORY,
            hints=ADDS | _AGAIN,
        ),
        tool(
            "memory_run_turn",
            RunTurn,
            TurnRun,
            lambda services, caller, body: _lifecycle(services).run_turn(
                caller, request=_within_answer(services, body)
            ),
            title="Run a turn in two calls",
            description=(
                "Instead of memory_before_turn and memory_after_turn: the first call takes the fields of the former,"
                " stores the input and gives the context with an `operation_token`; after the model call, call it again"
                " with that token and `output_items`. Both calls may be repeated; the token is valid for some minutes."
            ),
            group=Group.MEMORY,
            hints=ADDS | _AGAIN,
            access=READER_AND_WRITER,
            is_cut=False,
        ),
    )


def _session_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "memory_run_maintenance",
            SessionRequest,
            Maintained,
            lambda services, caller, body: _lifecycle(services).maintenance(caller, request=body),
            title="Look after a session",
            description=(
                "Do now what jobs do for a session in time: summarise old turns, erase what retention does not keep,"
                " end facts whose time is over, put better summaries in place. It says how much of each was done. It is"
                " never needed for a turn, and may be cut off and called again."
            ),
            group=Group.MEMORY,
            hints=_ERASES,
        ),
        tool(
            "memory_list_dir_with_abstract",
            TreeRequest,
            TreeAnswer,
            _tree,
            title="List a session's memory",
            description=(
                "List what is remembered of a session as a tree of paths, each with a line that says what is there:"
                " events by day, context (summary and newest turns), memory_tiers (facts by how long they are kept) and"
                " meta. `path` narrows it, `depth` and `limit` bound it. Read a path by the resource"
                " memory://{project}/{session}/{path}."
            ),
            group=Group.MEMORY,
            hints=READS,
        ),
    )


def _within_answer(services: ToolServices, body: _TurnT) -> _TurnT:
    """Return a turn to prepare that names no budget with one by which the answer is no longer than another one."""
    if body.max_input_tok is not None or body.current_input is None:
        return body
    max_tokens = min(services.max_answer_bytes // _BYTES_A_TOKEN, _lifecycle(services).max_input_tokens)
    return body.model_copy(update={"max_input_tok": max_tokens})


async def _tree(services: ToolServices, caller: Caller, body: TreeRequest) -> ToolAnswer:
    tree = await _lifecycle(services).tree(caller, request=body)
    shown = fit_list(
        tree.model_dump(mode="json"),
        "summaries",
        max_bytes=services.max_answer_bytes,
        how="Narrow it with path and depth.",
    )
    return ToolAnswer(shown)


def _lifecycle(services: ToolServices) -> Lifecycle:
    if services.lifecycle is None:
        raise RuntimeError("the lifecycle is not among these services")
    return services.lifecycle
