"""The AsyncAPI document of the WebSocket and the event streams, generated from the models of their frames. Pure.

Invariant: every frame of a connection is a message in the document, with the schema that reads or writes it.
`openapi/asyncapi.json` is its output.
"""

from typing import Final, TypeAlias, get_args

from pydantic import BaseModel, JsonValue
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from app.conversations.schemas.frames import (
    AuthFrame,
    ChunkFrame,
    ClientFrame,
    OpenFrame,
    PingFrame,
    ResumeFrame,
    ServerFrame,
)
from app.memory.schemas import FactRecordedFrame
from app.routers.live import connection
from app.routers.live.sse import ListEvent, TurnEvent, type_of

Json: TypeAlias = dict[str, JsonValue]

CLOSE_CODES: Final[dict[int, str]] = {
    connection.NOT_TEXT: "A frame was not text. Frames are JSON in text messages.",
    connection.TOO_LARGE: "A frame was too large; a first frame, where no header has a key, is of 8 KiB at most.",
    connection.FAILED: "The server failed. Connect again.",
    connection.RESTARTING: "The server is stopping. Connect again, to another replica, and resume.",
    connection.TRY_LATER: "A dependency of the server is not available. Connect again later.",
    connection.MALFORMED: "The first frame was not `auth` where it had to be, or too many frames were invalid.",
    connection.UNAUTHENTICATED: "No key or token, an invalid one, or one in the URL.",
    connection.FORBIDDEN: "The key or token does not open this conversation.",
    connection.NOT_FOUND: "The conversation does not exist, or was deleted.",
    connection.TIMED_OUT: "No key was received in time.",
    connection.TOO_MANY: "Too many live connections: the `error` frame before names the limit. Close some or wait.",
}
"""The codes with which the server closes a WebSocket, and their reasons."""
_LIVE: Final = "live"
_EVENTS: Final = "conversationEvents"
_LIST: Final = "listEvents"
_BINDING_VERSION: Final = {"ws": "0.1.0", "http": "0.3.0"}
_DESCRIPTION: Final = """\
Messages of the live connections of Turnkeep. The application of this document is the server: it `receive`s the
messages that a client sends. The HTTP API is in `/openapi.json`; its calls `…/turns/open`, `…/chunks`, `…/commit`,
`…/abort` and `…/resume` have the same fields as the frames of these names.

Offsets and lengths count Unicode code points. A frame may have an `id`, which its `ack` or `error` repeats. Clients
ignore unknown fields and unknown types of frames.

A connection authenticates by a header, by a subprotocol, or by its first frame; never in the URL. Behind a proxy with
TLS, the protocols are `wss` and `https`.

Close codes of the WebSocket, in addition to those of RFC 6455:

{codes}
"""
_SECURITY: Final[Json] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "The header `Authorization: Bearer tk_…` with an API key.",
    },
    "header": {
        "type": "httpApiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same key, or a conversation token, in a header of its own.",
    },
    "conversationToken": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The header `Authorization: Bearer tkc_…` with a token for this conversation.",
    },
    "subprotocol": {
        "type": "httpApiKey",
        "in": "header",
        "name": "Sec-WebSocket-Protocol",
        "description": "For browsers, which set no other header: `turnkeep.v1, bearer.TOKEN`. The first one is chosen.",
    },
    "authFrame": {
        "type": "apiKey",
        "in": "password",
        "description": "The frame `auth` with a key or token, first of all, where nothing else carried one.",
    },
}
_PLACES: Final[Json] = {
    "after_rev": {"type": "integer", "minimum": 0, "description": "Begin with what changed after this rev."},
    "after_seq": {"type": "integer", "minimum": 0, "description": "Begin with the turns after this seq."},
}
_PROJECT: Final[Json] = {"project": {"type": "string", "description": "Only this project; all of them if left out."}}
_AFTERWARDS: Final[dict[type[BaseModel], str]] = {
    AuthFrame: "Later, it goes on under another key of the same tenant.",
    OpenFrame: "Acks with the turn's `durable_offset` follow as its text is written down.",
    ResumeFrame: "Its text goes on from `durable_offset` of each of `parts`.",
    ChunkFrame: "Its second ack may acknowledge several chunks.",
}


def asyncapi_document(version: str) -> Json:
    """Return the document for a release."""
    codes = "\n".join(f"- `{code}`: {text}" for code, text in sorted(CLOSE_CODES.items()))
    return {
        "asyncapi": "3.1.0",
        "id": "urn:turnkeep:live",
        "info": {
            "title": "Turnkeep live",
            "version": version,
            "description": _DESCRIPTION.format(codes=codes),
            "license": {"name": "MIT"},
            "contact": {"name": "Turnkeep"},
            "tags": [{"name": "live"}],
        },
        "defaultContentType": "application/json",
        "servers": {
            "websocket": _server("ws", "The WebSocket.", list(_SECURITY)),
            "http": _server("http", "The event streams.", ["bearer", "header", "conversationToken"]),
        },
        "channels": _channels(),
        "operations": _operations(),
        "components": {
            "messages": {_name(model): _message(model) for model in _models()},
            "schemas": _schemas(),
            "securitySchemes": _SECURITY,
        },
    }


def client_frames() -> tuple[type[BaseModel], ...]:
    """Return the frames that a client may send."""
    return get_args(get_args(ClientFrame)[0])


def server_frames() -> tuple[type[BaseModel], ...]:
    """Return the frames that the server may send to a WebSocket client."""
    return (*get_args(ServerFrame), FactRecordedFrame)


def _models() -> list[type[BaseModel]]:
    # in this order, each once
    return list(dict.fromkeys((*client_frames(), *server_frames(), *get_args(TurnEvent), *get_args(ListEvent))))


def _name(model: type[BaseModel]) -> str:
    return model.__name__.removesuffix("Frame")


def _sentences(model: type[BaseModel]) -> tuple[str, str]:
    """Return the first sentence of a model's docstring, and the complete docstring."""
    text = (model.__doc__ or "").strip()
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return paragraphs[0].split(". ")[0].rstrip("."), "\n\n".join(paragraphs)


def _message(model: type[BaseModel]) -> Json:
    summary, description = _sentences(model)
    return {
        "name": type_of(model),
        "title": _name(model),
        "summary": summary,
        "description": description,
        "payload": {"$ref": f"#/components/schemas/{model.__name__}"},
    }


def _schemas() -> Json:
    readers = frozenset(client_frames())
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (model, "validation" if model in readers else "serialization") for model in _models()
    ]
    _, document = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    schemas: dict[str, JsonValue] = document["$defs"]
    return {name: _clean_schema(schema) for name, schema in schemas.items()}


def _clean_schema(schema: JsonValue) -> JsonValue:
    """Remove defaults of constants, which generators read as optional members."""
    if isinstance(schema, list):
        return [_clean_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = {"default"} if "const" in schema else set[str]()
    return {name: _clean_schema(value) for name, value in schema.items() if name not in dropped}


def _server(protocol: str, description: str, security: list[str]) -> Json:
    return {
        "host": "{host}",
        "protocol": protocol,
        "description": description,
        "variables": {"host": {"default": "127.0.0.1:8765", "description": "Where Turnkeep listens."}},
        "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in security],
    }


def _channels() -> Json:
    conversation: Json = {"conversation_id": {"description": "The conversation: a ULID, or a UUID."}}
    return {
        _LIVE: {
            "address": "/v1/conversations/{conversation_id}/live",
            "title": "A conversation, to write to and to follow",
            "servers": [{"$ref": "#/servers/websocket"}],
            "parameters": conversation,
            "messages": _messages((*client_frames(), *server_frames())),
            "bindings": {"ws": {"method": "GET", "headers": _headers(), "bindingVersion": _BINDING_VERSION["ws"]}},
        },
        _EVENTS: {
            "address": "/v1/conversations/{conversation_id}/events",
            "title": "A conversation, to follow",
            "description": (
                "Server-sent events: `event` is the frame's type, `data` the frame, `id` what to give back as"
                " `Last-Event-ID`. Read it with fetch, since keys go in headers. After `reread` the stream ends."
            ),
            "servers": [{"$ref": "#/servers/http"}],
            "parameters": conversation,
            "messages": _messages(get_args(TurnEvent)),
        },
        _LIST: {
            "address": "/v1/events",
            "title": "A project's list of conversations, to follow",
            "description": "Server-sent events. After `reread` the list is read again; the stream goes on.",
            "servers": [{"$ref": "#/servers/http"}],
            "messages": _messages(get_args(ListEvent)),
        },
    }


def _headers() -> Json:
    properties: Json = {
        "Authorization": {"type": "string", "description": "`Bearer`, and a key or token."},
        "X-API-Key": {"type": "string", "description": "A key or token."},
        "Sec-WebSocket-Protocol": {
            "type": "string",
            "description": "`turnkeep.v1`, and `bearer.` followed by a key or token.",
        },
    }
    return {"type": "object", "properties": properties}


def _messages(models: tuple[type[BaseModel], ...]) -> Json:
    return {_name(model): {"$ref": f"#/components/messages/{_name(model)}"} for model in models}


def _message_refs(channel: str, models: tuple[type[BaseModel], ...]) -> list[JsonValue]:
    return [{"$ref": f"#/channels/{channel}/messages/{_name(model)}"} for model in models]


def _operations() -> Json:
    answers = {type_of(model): model for model in server_frames()}
    operations: Json = {}
    for model in client_frames():
        answered = (answers["pong" if model is PingFrame else "ack"], answers["error"])
        summary, description = _sentences(model)
        operations[type_of(model)] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{_LIVE}"},
            "title": _name(model),
            "summary": summary,
            "description": f"{description} {_AFTERWARDS.get(model, '')}".strip(),
            "messages": _message_refs(_LIVE, (model,)),
            "reply": {"channel": {"$ref": f"#/channels/{_LIVE}"}, "messages": _message_refs(_LIVE, answered)},
        }
    followed = tuple(model for model in get_args(TurnEvent) if model in server_frames())
    operations["follow"] = _sending(_LIVE, "Tell who has subscribed what happens.", (*followed, answers["ack"]))
    operations["followConversation"] = _sending(
        _EVENTS, "Tell what happens in a conversation.", get_args(TurnEvent), query=_PLACES
    )
    operations["followConversations"] = _sending(
        _LIST, "Tell which conversations change.", get_args(ListEvent), query=_PROJECT
    )
    return operations


def _sending(channel: str, summary: str, models: tuple[type[BaseModel], ...], *, query: Json | None = None) -> Json:
    operation: Json = {
        "action": "send",
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": _message_refs(channel, models),
    }
    if query is not None:
        asked: Json = {"type": "object", "properties": query}
        operation["bindings"] = {"http": {"method": "GET", "query": asked, "bindingVersion": _BINDING_VERSION["http"]}}
    return operation
