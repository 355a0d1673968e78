"""Ids in requests: a ULID or a UUID. The error of each kind says what a caller may have meant by another text."""

from contextlib import suppress
from typing import Annotated, Final, LiteralString, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.core.ids import ID_PATTERN, ConversationId, parse_id


def _reader_of_id(refusal: LiteralString) -> BeforeValidator:
    """Return a validator that parses an id; its error has this sentence."""

    def read_id(value: object) -> object:
        if isinstance(value, str):
            with suppress(ValueError):
                return parse_id(value)
        elif isinstance(value, UUID):
            return value
        raise PydanticCustomError("id_form", refusal)

    return BeforeValidator(read_id)


_Id = TypeVar("_Id", bound=UUID)
_ID_SCHEMA: Final = WithJsonSchema(
    {"type": "string", "description": "A ULID (26 characters) or a UUID.", "maxLength": 36, "pattern": ID_PATTERN}
)
IdOf: TypeAlias = Annotated[_Id, _reader_of_id("an id is a ULID (26 characters) or a UUID"), _ID_SCHEMA]
IdIn: TypeAlias = IdOf[UUID]
ConversationIdIn: TypeAlias = Annotated[
    ConversationId,
    _reader_of_id(
        "an id is a ULID (26 characters) or a UUID. An external_id is none: POST /v1/conversations with it returns"
        " the id."
    ),
    _ID_SCHEMA,
]
ConversationNameIn: TypeAlias = Annotated[
    ConversationId,
    _reader_of_id("an id is a ULID (26 characters) or a UUID. An external_id is none: give it as `external_id`."),
    _ID_SCHEMA,
]
"""The id of a conversation in an object that has a member `external_id` too."""
NewTurnId: TypeAlias = Annotated[
    UUID,
    _reader_of_id(
        "an id is a ULID (26 characters) or a UUID. For an id of another system give the UUIDv5 of it, or leave it out"
        " and send an Idempotency-Key."
    ),
    _ID_SCHEMA,
]
"""The id of a turn, chosen by the caller."""
