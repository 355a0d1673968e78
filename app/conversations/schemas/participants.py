"""Participants of a conversation: its speakers, and the tools that acted in it.

Only speakers have names that recall and facts look for in a text. A tool is marked by its `role`, a speaker has none.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, WithJsonSchema

from app.core.validation.strict import Strict

# that no text holds NUL is checked for the whole body; here it is in the schema too
ParticipantName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]

MAX_PARTICIPANTS = 200


class Participant(Strict):
    """A participant of the conversation: the actor's string, and its names. `role` is `tool` for a tool."""

    actor: ParticipantName
    name: ParticipantName | None = None
    aliases: list[ParticipantName] = Field(default=[], max_length=20)
    role: Literal["tool"] | None = None


def _read_participant(value: object) -> object:
    return {"actor": value} if isinstance(value, str) else value


ParticipantIn: TypeAlias = Annotated[
    Participant, BeforeValidator(_read_participant, json_schema_input_type=Participant | ParticipantName)
]
ParticipantsIn: TypeAlias = Annotated[
    list[ParticipantIn],
    Field(max_length=MAX_PARTICIPANTS, description="Objects, or the actors' strings alone; each actor is kept once."),
]


def _is_speaker(role: str | None) -> bool:
    return role is None


class ParticipantOut(BaseModel):
    """A participant of the conversation. `role` is `tool` for a tool that acted; a speaker has no `role`."""

    actor: str
    name: str | None
    aliases: list[str]
    # a default, so that the schema says that it may be absent
    role: Annotated[Literal["tool"] | None, WithJsonSchema({"type": "string", "const": "tool"})] = Field(
        default=None, exclude_if=_is_speaker
    )
