"""The base model of callers' input: unknown fields are errors that name them, other spellings are accepted.

Pydantic reports only the position of an unknown field, so each model adds its own field names to such an error before
it leaves the model.
"""

from collections.abc import Mapping
from typing import Final, Self, cast, get_args

from pydantic import (
    AliasChoices,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    JsonValue,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from app.core.errors import PublicValueError

SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "k": ("top_k",),
    "top_k": ("k",),
    "token_budget": ("tokenBudget",),
    "recent_turns": ("recentTurns",),
    "semantic_recall": ("semanticRecall",),
    "include_facts": ("includeFacts",),
    "filter_participants": ("filterParticipants",),
    "trigger_turns": ("triggerTurns",),
    "trigger_tokens": ("triggerTokens",),
    "summarizer_model": ("summarizerModel",),
    "ttl_s": ("ttl",),
    "usage": ("tokens",),
}
"""Other accepted names of a field, in every model that has such a field."""

UNKNOWN_FIELD: Final = "unknown_field"
"""Error type of an unknown field. Its context has `known`: the names of the fields of that object."""

_MAX_MEMBERS: Final = 64
KNOWN_TYPES: Final = frozenset(cast("tuple[str, ...]", get_args(core_schema.ErrorType)))
"""All error types of pydantic itself."""


def _spellings(name: str) -> AliasChoices | str:
    return AliasChoices(name, *SPELLINGS[name]) if name in SPELLINGS else name


class Unchecked(dict[str, JsonValue]):
    """A parsed object with values that not every reader stores: in members that pass, which their reader checks."""


class Strict(BaseModel):
    """An object of a caller's input. An unknown field is an error that names the known fields."""

    model_config = ConfigDict(extra="forbid", alias_generator=AliasGenerator(validation_alias=_spellings))

    @model_validator(mode="wrap")
    @classmethod
    def _name_known_fields(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # pydantic creates an error for every unknown field: for an object with millions of them this would block the
        # process
        if isinstance(value, dict) and len(value) > _MAX_MEMBERS:  # pyright: ignore[reportUnknownArgumentType]
            raise PublicValueError("This object has too many fields.")
        try:
            return handler(value)
        except ValidationError as error:
            errors: list[ErrorDetails] = error.errors(include_url=False)
            if not any(map(_is_unknown_here, errors)):
                raise
            names = ((field.validation_alias, name) for name, field in cls.model_fields.items())
            field_names = sorted(alias if isinstance(alias, str) else name for alias, name in names)
            raise ValidationError.from_exception_data(
                cls.__name__, [_with_known(details, field_names) for details in errors]
            ) from None


def _is_unknown_here(error: ErrorDetails) -> bool:
    return error["type"] == "extra_forbidden" and len(error["loc"]) == 1


def _with_known(error: ErrorDetails, names: list[str]) -> InitErrorDetails:
    """Return the error unchanged, or with the known fields if it is about an unknown field of this object."""
    kind, context = error["type"], error.get("ctx", {})
    raised: str | PydanticCustomError = kind
    if _is_unknown_here(error):
        raised = PydanticCustomError(UNKNOWN_FIELD, "Unknown field.", {"known": names})
    elif kind not in KNOWN_TYPES:
        raised = PydanticCustomError(kind, error["msg"], context)  # pyright: ignore[reportArgumentType]
    return InitErrorDetails(type=raised, loc=error["loc"], input=error["input"], ctx=context)
