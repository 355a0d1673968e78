"""Calls an endpoint with the arguments that its signature and those of its dependencies declare.

FastAPI finds out for every request what kind of function each dependency is, and which results are shared. A plan is
made once, with the route. Values are validated by FastAPI's own fields, so values and errors are the same, in the same
order. Only an error in a part of the path is listed once, where FastAPI lists it for each function that takes the part.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple, Self, cast

from fastapi import Request, Response, params
from fastapi._compat import field_annotation_is_sequence
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args, request_params_to_args
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.routing import APIRoute
from fastapi.utils import is_body_allowed_for_status_code
from pydantic import BaseModel, Json, RootModel
from pydantic_core import PydanticUndefined
from starlette.datastructures import QueryParams

NO_BODY: Final[object] = PydanticUndefined
"""The body of a request without one, as FastAPI names it."""

_NEVER_CHANGED: Final = (type(None), bool, int, float, str, Enum)


class _Invalid(Enum):
    """The result of a dependency that was not called, since its own arguments are invalid."""

    RESULT = auto()


_INVALID: Final = _Invalid.RESULT

_Arguments = dict[str, Any]
_Errors = list[Any]


class _QueryModel(NamedTuple):
    """A model that has all parameters of a query as its fields: their names, and whether they may be repeated."""

    field: Any
    parameters: Sequence[tuple[str, bool]]

    @classmethod
    def of(cls, fields: Sequence[Any]) -> Self | None:
        """Return the model among the fields of FastAPI; None if it is one of those that only FastAPI can read.

        These are models with other names for a field, or with rules for parameters that they do not have.
        """
        field = fields[0]
        model = field.field_info.annotation
        if (
            len(fields) > 1
            or not (isinstance(model, type) and issubclass(model, BaseModel))
            or issubclass(model, RootModel)
        ):
            return None
        if model.model_config or model.__pydantic_decorators__.model_validators:
            return None
        own = model.model_fields
        if any(one.alias or one.validation_alias or Json in map(type, one.metadata) for one in own.values()):
            return None
        return cls(field, [(name, field_annotation_is_sequence(one.annotation)) for name, one in own.items()])

    def read(self, given: QueryParams) -> tuple[_Arguments, _Errors]:
        """Return the model as an argument, or its errors."""
        found = {name: given.getlist(name) if is_list else given.get(name) for name, is_list in self.parameters}
        given_values = {name: value for name, value in found.items() if value is not None and value != []}
        value, errors = self.field.validate(given_values, {}, loc=("query",))
        return ({}, errors) if errors else ({self.field.name: value}, [])


class _Parameters:
    """The parameters of one function in the query or in the headers of a request."""

    __slots__ = ("_defaults", "_fields", "_is_query", "_model", "_names")

    def __init__(self, fields: Sequence[Any], *, is_query: bool) -> None:
        """`fields` are those of FastAPI."""
        self._fields = fields
        self._is_query = is_query
        self._model = _QueryModel.of(fields) if is_query else None
        self._names = frozenset(
            name.lower().encode() for field in fields for name in (field.alias, field.validation_alias) if name
        )
        values, errors = request_params_to_args(fields, {})
        is_constant = all(isinstance(value, _NEVER_CHANGED) for value in values.values())
        is_constant &= all(field.field_info.default_factory is None for field in fields)
        self._defaults: _Arguments | None = values if is_constant and not errors else None
        """The arguments if the request has none of the parameters; None if they must be made for each request."""

    def read(self, request: Request) -> tuple[_Arguments, _Errors]:
        """Return the arguments and the errors of those that are invalid."""
        if self._is_query:
            if self._defaults is not None and not request.scope["query_string"]:
                return self._defaults, []
            if self._model is not None:
                return self._model.read(request.query_params)
            return request_params_to_args(self._fields, request.query_params)
        if self._defaults is not None and not any(name in self._names for name, _ in request.scope["headers"]):
            return self._defaults, []
        return request_params_to_args(self._fields, request.headers)


class PlannedCall(NamedTuple):
    """A function to call. `needs`: names of its arguments that are results of earlier calls, with the indexes of those.

    A name is None for a dependency whose result is not used. `path`: names of arguments that are parts of the path,
    with the indexes of these parts.
    """

    call: Callable[..., Coroutine[object, object, object]]
    needs: Sequence[tuple[str | None, int]]
    path: Sequence[tuple[str, int]]
    parameters: Sequence[_Parameters]
    request_name: str | None
    response_name: str | None


class EndpointPlan:
    """The functions to call for a request to one route: the dependencies, each once, and the endpoint."""

    __slots__ = ("_body_field", "_dependencies", "_endpoint", "_path_fields", "_route")

    def __init__(self, route: APIRoute, calls: Sequence[PlannedCall], path_fields: Sequence[Any]) -> None:
        self._route = route
        self._path_fields = path_fields
        self._dependencies = calls[:-1]
        self._endpoint = calls[-1]
        self._body_field = route.body_field

    @classmethod
    def of(cls, route: APIRoute) -> Self | None:
        """Return the plan of a route; None if it has something that only FastAPI does.

        These are functions that are not coroutines, forms, several bodies, background tasks, other classes of
        responses, options of response models, and the like. A plan does not know FastAPI's overrides of dependencies.
        """
        dependant = route.dependant
        is_plain_body = not dependant.body_params or dependant.body_params == [route.body_field]
        is_form = route.body_field is not None and isinstance(route.body_field.field_info, params.Form)
        if (
            not is_plain_body
            or is_form
            or not _has_plain_model(route)
            or not all(map(_is_plain, _dependants(dependant)))
        ):
            return None
        subs = [sub for sub in _dependants(dependant) if sub is not dependant]
        if any(sub.body_params or sub.response_param_name for sub in subs):
            return None
        calls: list[PlannedCall] = []
        path_fields: list[Any] = []
        _add_calls(dependant, calls, path_fields, {})
        return cls(route, calls, path_fields)

    async def answer(self, request: Request, body: object) -> Response:
        """Call the endpoint and return its answer. `body` is parsed JSON, or NO_BODY.

        Raises RequestValidationError for invalid arguments, and what the functions raise.
        """
        results: list[object] = []
        path = [_PathPart.of(request, field) for field in self._path_fields]
        errors: _Errors = []
        headers = _HeadersOnly() if self._endpoint.response_name is not None else None
        for planned in self._dependencies:
            arguments = _arguments(planned, request, path, results, errors)
            results.append(_INVALID if arguments is None else await planned.call(**arguments))
        arguments = _arguments(self._endpoint, request, path, results, errors)
        if arguments is not None and self._endpoint.response_name is not None:
            arguments[self._endpoint.response_name] = headers
        if (field := self._body_field) is not None:
            if body is NO_BODY:
                value, wrong = await request_body_to_args([field], body, embed_body_fields=False)
            else:
                found, wrong = field.validate(body, {}, loc=("body",))
                value = {field.name: found}
            errors += wrong
            if arguments is not None:
                arguments |= value
        if arguments is None or errors:
            raise RequestValidationError(errors, body=None if body is NO_BODY else body)
        found = await self._endpoint.call(**arguments)
        return found if isinstance(found, Response) else self._to_response(found, headers)

    def _to_response(self, found: object, headers: Response | None) -> Response:
        field = cast("Any", self._route.response_field)
        value, errors = field.validate(found, {}, loc=("response",))
        if errors:
            raise ResponseValidationError(errors, body=found)
        status = (None if headers is None else cast("int | None", headers.status_code)) or self._route.status_code
        response = Response(field.serialize_json(value), status_code=status or 200, media_type="application/json")
        if not is_body_allowed_for_status_code(response.status_code):
            response.body = b""
        if headers is not None:
            response.raw_headers.extend(headers.raw_headers)
        return response


class _HeadersOnly(Response):
    """What an endpoint sets headers and status of: they are copied to its answer."""

    def __init__(self) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.status_code = cast("int", None)  # the endpoint may set one; else that of the route counts


@dataclass(slots=True)
class _PathPart:
    """A part of the path: its value, or its errors until they are listed. It is validated once for all functions."""

    value: object
    errors: Sequence[Any]

    @classmethod
    def of(cls, request: Request, field: Any) -> Self:
        """Return the part that a field names."""
        value, errors = field.validate(request.path_params[field.alias], {}, loc=("path", field.alias))
        return cls(_INVALID if errors else value, errors)


def _arguments(
    planned: PlannedCall, request: Request, path: Sequence[_PathPart], results: Sequence[object], errors: _Errors
) -> _Arguments | None:
    """Return the arguments of a call, without a body; None if some are invalid, whose errors are added."""
    arguments: _Arguments = {}
    is_valid = True
    for name, index in planned.needs:
        if results[index] is _INVALID:
            is_valid = False
        elif name is not None:
            arguments[name] = results[index]
    for name, index in planned.path:
        part = path[index]
        arguments[name] = part.value
        if part.value is _INVALID:
            is_valid = False
            errors += part.errors
            part.errors = ()
    for parameters in planned.parameters:
        found, wrong = parameters.read(request)
        arguments |= found
        if wrong:
            errors += wrong
            is_valid = False
    if planned.request_name is not None:
        arguments[planned.request_name] = request
    return arguments if is_valid else None


def _has_plain_model(route: APIRoute) -> bool:
    """Return whether answers are written with a model and its defaults."""
    options = (
        route.response_model_include, route.response_model_exclude, route.response_model_exclude_unset,
        route.response_model_exclude_defaults, route.response_model_exclude_none, not route.response_model_by_alias,
    )  # fmt: skip
    return (
        route.response_field is not None and isinstance(route.response_class, DefaultPlaceholder) and not any(options)
    )


def _dependants(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for sub in dependant.dependencies:
        yield from _dependants(sub)


def _is_plain(dependant: Dependant) -> bool:
    """Return whether a function is a coroutine function with arguments that a `PlannedCall` has."""
    call = dependant.call
    is_coroutine = iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004
    names = (
        *(dependant.websocket_param_name, dependant.http_connection_param_name),
        *(dependant.background_tasks_param_name, dependant.security_scopes_param_name),
    )
    has_other = any(names) or bool(dependant.cookie_params) or dependant.concurrency is not None
    return is_coroutine and dependant.use_cache and not has_other


def _add_calls(
    dependant: Dependant, calls: list[PlannedCall], path_fields: list[Any], numbers: dict[object, int]
) -> int:
    """Add the call of a function after those of its dependencies; return its number. Each function is called once."""
    if dependant.call in numbers:
        return numbers[dependant.call]
    needs = [(sub.name, _add_calls(sub, calls, path_fields, numbers)) for sub in dependant.dependencies]
    path = [(field.name, _place_among(path_fields, field)) for field in dependant.path_params]
    parts = ((dependant.query_params, True), (dependant.header_params, False))
    parameters = [_Parameters(fields, is_query=is_query) for fields, is_query in parts if fields]
    call = cast("Callable[..., Coroutine[object, object, object]]", dependant.call)
    names = (dependant.request_param_name, dependant.response_param_name)
    calls.append(PlannedCall(call, needs, path, parameters, *names))
    numbers[dependant.call] = len(calls) - 1
    return numbers[dependant.call]


def _place_among(path_fields: list[Any], field: Any) -> int:
    """Return the number of a part of the path; a part that is declared in the same way has the same number."""
    for number, other in enumerate(path_fields):
        mine, its = field.field_info, other.field_info
        if (field.alias, mine.annotation, mine.metadata) == (other.alias, its.annotation, its.metadata):
            return number
    path_fields.append(field)
    return len(path_fields) - 1
