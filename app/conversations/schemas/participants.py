"""Participants of a conversation: its speakers, and the tools that acted in it.

Recall and facts search texts only for names of speakers. A tool has a `role`, a speaker has none.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, WithJsonSchema

from app.core.validation.strict import Strict

# the whole body is checked for NUL; this shows the rule in the schema
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
    # the default makes the member optional in the schema
    role: Annotated[Literal["tool"] | None, WithJsonSchema({"type": "string", "const": "tool"})] = Field(
        default=None, exclude_if=_is_speaker
    )
