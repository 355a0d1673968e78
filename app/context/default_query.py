"""The default query of a context: the newest turn that says something. Pure."""

from collections.abc import Sequence

from app.conversations.schemas.conversations import content_text
from app.formats.schemas import CanonicalTurn, Role
from app.index.analyser.cues import says_something

MAX_QUERY_CHARACTERS = 10_000
"""Recall uses at most this many characters of a query: its model reads no more of a long document."""
_EDGE_CHARACTERS = 1000


def default_query(turns: Sequence[CanonicalTurn], as_actor: str | None) -> str | None:
    """Return the text of the newest question, else of the newest turn before it that says something.

    A question is a turn of the user, or for an actor, a text of any other author. The answer of an assistant is what
    the user says `yes` to. Empty if no turn says anything; None if no turn is a question.
    """
    is_answered = False
    for turn in reversed(turns):
        if not (is_answered or _asks(turn, as_actor)):
            continue
        text = content_text(turn.content)
        if turn.role in {Role.USER, Role.ASSISTANT} and says_something(text):
            return _edges(text)
        is_answered = True
    return "" if is_answered else None


def _edges(text: str) -> str:
    """Return the beginning and the end of a long text, where its question is; a short one as it is."""
    if len(text) <= MAX_QUERY_CHARACTERS:
        return text
    return f"{text[:_EDGE_CHARACTERS]}\n{text[-_EDGE_CHARACTERS:]}"


def _asks(turn: CanonicalTurn, as_actor: str | None) -> bool:
    """Return whether a turn is a question: a user's turn, or for an actor, a text of any other author."""
    if as_actor is None:
        return turn.role is Role.USER
    says = turn.role in {Role.USER, Role.ASSISTANT} and bool(content_text(turn.content).strip())
    return says and turn.actor != as_actor
