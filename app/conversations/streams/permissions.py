"""Check permissions to write turns into a conversation. Pure.

A caller with an API key may write as any actor. A caller with a conversation token writes as the token's actor, in the
token's roles, and only turns of the default kinds of a role: no system instructions, no compaction markers.
"""

from collections.abc import Sequence
from typing import NoReturn

from app.conversations.drafts import USUAL_KINDS
from app.conversations.schemas.conversations import TurnInput
from app.conversations.schemas.frames import Opening
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams.buffer import TurnAuthor
from app.core.errors import FieldError, Forbidden
from app.formats.schemas import Kind, Role
from app.tenancy.schemas import Access, Binding, Caller


def require_may_write(
    caller: Caller, *, role: Role, actor: str | None, kind: Kind | None = None, at: str = ""
) -> str | None:
    """Return the actor of a turn that a caller writes: the given one, or the token's.

    Raises Forbidden `token_not_allowed` with the pointer of the refused member; `at` is the pointer to the turn.
    """
    bound = caller.bound
    if bound is None:
        return actor
    if bound.access is not Access.APPEND or bound.actor is None:
        _refuse(at, "this token is for reading")
    if role not in bound.roles:
        _refuse(f"{at}/role", "not a role of this token")
    if kind is not None and kind not in USUAL_KINDS[role]:
        _refuse(f"{at}/kind", "not the kind that turns of this role have; leave it out")
    if actor is not None and actor != bound.actor:
        _refuse(f"{at}/actor", "not the actor of this token; leave it out")
    return bound.actor


def permitted_turns(caller: Caller, turns: Sequence[TurnInput]) -> Sequence[TurnInput]:
    """Return the turns of an append with their actors filled in. Raises Forbidden."""
    if caller.bound is None:
        return turns
    actors = [
        require_may_write(caller, role=turn.role, actor=turn.actor, kind=turn.kind, at=f"/turns/{index}")
        for index, turn in enumerate(turns)
    ]
    return [turn.model_copy(update={"actor": actor}) for turn, actor in zip(turns, actors, strict=True)]


def permitted_opening(caller: Caller, opening: Opening) -> Opening:
    """Return the opening of a turn with its actor filled in. Raises Forbidden."""
    if caller.bound is None:
        return opening
    turn = opening.turn
    actor = require_may_write(caller, role=turn.role, actor=turn.actor, kind=turn.kind, at="/turn")
    if turn.supersedes is not None:
        _refuse("/turn/supersedes", "a token does not allow superseding a turn")
    return opening.model_copy(update={"turn": turn.model_copy(update={"actor": actor})})


def turn_author(row: TurnRow) -> TurnAuthor:
    """Return the author of a turn by its row."""
    return TurnAuthor(Role(row.role), Kind(row.kind), row.actor)


def require_may_continue(bound: Binding | None, author: TurnAuthor) -> None:
    """Raise Forbidden if the token does not permit to continue a turn, because of its actor, role or kind.

    `supersedes` is not checked: the key that opened the turn has decided it.
    """
    if bound is None:
        return
    if author.actor != bound.actor:
        _refuse("", "this turn is another actor's")
    if author.role not in bound.roles or author.kind not in USUAL_KINDS[author.role]:
        _refuse("", "this turn has a role or kind that is not this token's")


def _refuse(pointer: str, reason: str) -> NoReturn:
    raise Forbidden(
        "token_not_allowed",
        "This conversation token does not allow this write; nothing was stored.",
        fields=[FieldError(pointer, reason)],
    )
