"""The OpenAPI document as the generators read it: its schemas, and its operations with what a client must know."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]

Repeat: TypeAlias = Literal["safe", "key", "unsent"]
"""When a client may send a request again: always; always, with its Idempotency-Key; only if it was not executed."""

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_SAFE_METHODS: Final = frozenset({"get", "put", "delete"})
_SAFE_POSTS: Final = frozenset(
    {
        # they only read
        "search_conversations", "search_turns", "build_context", "recall", "recall_in_conversation", "search_facts",
        "search_memories", "filter_memories", "before_turn", "list_memory_tree", "look_up_owner", "verify_erasure",
        # a repeated call changes nothing: its place, its name or the state of its object says that it was executed
        "append_chunk", "commit_turn", "abort_turn", "resume_turn", "after_turn", "run_turn", "run_maintenance",
        "trash_conversation", "restore_conversation",
    }
)  # fmt: skip
IDEMPOTENCY_KEY: Final = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    place: str
    schema: JsonObject
    is_required: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the document."""

    id: str
    method: str
    path: str
    description: str
    parameters: list[Parameter]
    body: JsonObject | None
    is_body_bytes: bool
    is_body_required: bool
    result: JsonObject | None
    is_result_bytes: bool
    repeat: Repeat


def as_object(value: JsonValue) -> JsonObject:
    """Return the object that the document must have here."""
    if not isinstance(value, dict):
        raise TypeError("the document has no object here")
    return value


def as_list(value: JsonValue) -> list[JsonValue]:
    """Return the list that the document must have here."""
    if not isinstance(value, list):
        raise TypeError("the document has no list here")
    return value


def schemas_of(document: JsonObject) -> dict[str, JsonObject]:
    """Return the schemas of the components, by name."""
    found = as_object(as_object(document["components"])["schemas"])
    return {name: as_object(schema) for name, schema in found.items()}


def operations_of(document: JsonObject) -> list[Operation]:
    """Return the operations, except event streams, which the libraries read by hand."""
    made: list[Operation] = []
    for path, item in as_object(document["paths"]).items():
        for method in _METHODS:
            entry = as_object(item).get(method)
            if entry is not None and set(_success(as_object(entry))) != {"text/event-stream"}:
                made.append(_operation(path, method, as_object(entry)))
    return made


def events_of(document: JsonObject, operation_id: str) -> JsonObject:
    """Return the schema of the events of a stream."""
    for item in as_object(document["paths"]).values():
        entry = as_object(as_object(item).get("get", {}))
        if entry.get("operationId") == operation_id:
            return as_object(as_object(_success(entry)["text/event-stream"])["schema"])
    raise LookupError(operation_id)


def _operation(path: str, method: str, entry: JsonObject) -> Operation:
    parameters = [_parameter(as_object(one)) for one in as_list(entry.get("parameters", []))]
    request = as_object(entry.get("requestBody", {}))
    bodies, results = as_object(request.get("content", {})), _success(entry)
    operation_id = str(entry["operationId"])
    repeat: Repeat = "unsent"
    if method in _SAFE_METHODS or operation_id in _SAFE_POSTS:
        repeat = "safe"
    elif any(one.name == IDEMPOTENCY_KEY for one in parameters):
        repeat = "key"
    return Operation(
        id=operation_id,
        method=method.upper(),
        path=path,
        description=str(entry.get("description", entry["summary"])),
        parameters=parameters,
        body=as_object(as_object(bodies["application/json"])["schema"]) if "application/json" in bodies else None,
        is_body_bytes=bool(bodies) and "application/json" not in bodies,
        is_body_required=request.get("required") is True,
        result=as_object(as_object(results["application/json"])["schema"]) if "application/json" in results else None,
        is_result_bytes=bool(results) and "application/json" not in results,
        repeat=repeat,
    )


def _parameter(entry: JsonObject) -> Parameter:
    return Parameter(
        str(entry["name"]), str(entry["in"]), as_object(entry["schema"]), is_required=entry.get("required") is True
    )


def _success(entry: JsonObject) -> JsonObject:
    """The media types of the first successful response that has any."""
    for status, response in as_object(entry["responses"]).items():
        if status.startswith("2") and (content := as_object(response).get("content")):
            return as_object(content)
    return {}
