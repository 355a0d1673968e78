"""Two sessions of a user with an agent, and the scripted chat model behind them.

The model stores as a memory what the user says, and answers a question by what its tools recall.
"""

import json
from collections.abc import Callable
from typing import Any

from tests.support.fake_chat import Reply, says

STATEMENT = "I am allergic to peanuts."
REPEATED = f"Once more: {STATEMENT}"
QUESTION = "Which food must I avoid?"
THANKS = "Thank you."
NOTED = "I will remember that."
RECALLED = f"You told me: {STATEMENT}"
WELCOME = "You are welcome."

SESSIONS = {
    "session-1": [(STATEMENT, NOTED), (REPEATED, NOTED)],
    "session-2": [(QUESTION, RECALLED), (THANKS, WELCOME)],
}
"""By session, what the user says and what the agent answers."""


def script(project: str) -> Callable[[dict[str, Any]], Reply]:
    """The model of one project: what it replies to a request."""

    def reply(request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        since = next(at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "user")
        said, results = (
            text_of(messages[since]),
            [text_of(one) for one in messages[since + 1 :] if one["role"] == "tool"],
        )
        if said in {STATEMENT, REPEATED}:
            if not results:
                return _calls(messages, store_memory={"content": STATEMENT})
            return says(
                NOTED if [json.loads(one) for one in results] == [{"stored": True}] else f"Not stored: {results}"
            )
        if said == QUESTION:
            if not results:
                return _calls(
                    messages,
                    recall_memory={"query": QUESTION, "top_k": 3},
                    recall={"query": QUESTION, "project": project},
                )
            return says(RECALLED if all(STATEMENT in one for one in results) else f"Not recalled: {results}")
        return says(WELCOME)

    return reply


def text_of(message: dict[str, Any]) -> str:
    """The text of a message or turn: a text, or a list of parts."""
    content = message["content"]
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content or ""


def _calls(messages: list[Any], **wanted: dict[str, Any]) -> Reply:
    """A reply that calls tools at once, by ids that no other reply of the conversation has."""
    return Reply(
        None,
        tool_calls=tuple(
            (f"call_{len(messages)}_{name}", name, json.dumps(arguments)) for name, arguments in wanted.items()
        ),
    )
