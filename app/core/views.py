"""What callers see of rows."""

from typing import Annotated, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator

from app.core.ids import format_id

View = TypeVar("View", bound=BaseModel)


def _id_text(value: object) -> object:
    return format_id(value) if isinstance(value, UUID) else value


IdOut: TypeAlias = Annotated[str, BeforeValidator(_id_text)]
"""An id as callers see it, a ULID; a UUID is converted."""


def view_of(view: type[View], row: object, **values: object) -> View:
    """Return a view of a row: its attributes by the names of the fields, except those that `values` has."""
    members = {name: getattr(row, name) for name in view.model_fields if name not in values}
    return view.model_validate(members | values)
