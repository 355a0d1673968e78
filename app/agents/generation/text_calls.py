"""Tool calls that a model writes as its text, as calls of the client's tools. Pure.

Only an answer that is nothing but calls of offered tools becomes calls. It does not if the client asked for JSON, or
for no calls. In a stream the text is already sent, so the calls follow it in the last chunk of the answer.
"""

from app.agents.generation.answer import PartialAnswer
from app.formats.schemas import JsonObject


def offered_tools(body: JsonObject, *, allowed: frozenset[str] | None) -> frozenset[str]:
    """Return the names of the functions whose calls are read from the text of an answer to the request `body`."""
    choice, form = body.get("tool_choice"), body.get("response_format")
    wants_json = isinstance(form, dict) and form.get("type") != "text"
    tools = body.get("tools")
    if choice == "none" or wants_json or not isinstance(tools, list):
        return frozenset()
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = {name for one in functions if isinstance(one, dict) and isinstance(name := one.get("name"), str)}
    wanted = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(wanted, dict):
        names &= {str(wanted.get("name"))}
    return frozenset(names if allowed is None else names & allowed)


def read_completion(
    completion: JsonObject, *, offered: frozenset[str], allowed: frozenset[str] | None
) -> tuple[JsonObject, PartialAnswer]:
    """Return a completion and its answer, with calls in place of a text that consists of them. Raises InvalidAnswer."""
    answer = PartialAnswer.of(completion, allowed_tools=allowed, offered_tools=offered)
    calls = answer.read_text_calls()
    if not calls:
        return completion, answer
    message: JsonObject = {**answer.message, "content": None, "tool_calls": [*calls]}
    completion = _with_first_choice(completion, {"message": message})
    answer = PartialAnswer.of(completion, allowed_tools=allowed)
    answer.text_call = "read"
    return completion, answer


def with_streamed_calls(piece: JsonObject, calls: list[JsonObject]) -> tuple[JsonObject, JsonObject]:
    """Return the last chunk of a streamed answer with calls, and the part of it that is new to the answer."""
    numbered: list[JsonObject] = [{"index": number, **call} for number, call in enumerate(calls)]
    given = next((choice.get("delta") for choice in _choices(piece) if _is_first(choice)), None)
    new: JsonObject = {"tool_calls": [*numbered]}
    whole = _with_first_choice(piece, {"delta": {**given, **new} if isinstance(given, dict) else new})
    added: JsonObject = {"index": 0, "delta": new, "finish_reason": "tool_calls"}
    return whole, {"choices": [added]}


def _with_first_choice(completion: JsonObject, members: JsonObject) -> JsonObject:
    choices = [
        {**choice, **members, "finish_reason": "tool_calls"} if _is_first(choice) else choice
        for choice in _choices(completion)
    ]
    return {**completion, "choices": [*choices]}


def _choices(piece: JsonObject) -> list[JsonObject]:
    choices = piece.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _is_first(choice: JsonObject) -> bool:
    return choice.get("index", 0) == 0
