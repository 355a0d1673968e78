"""The OpenAPI document: FastAPI's description of the routes, and the parts that all operations share. Pure."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.routers.documents.webhook_events import complete_events, event_routes
from app.routers.http.problems import add_problem_schemas, add_problems

EXAMPLES_PATH: Final = Path(__file__).parent / "examples.json"
"""One example per operation: `parameters`, `request`, `status` and `response`, in an order in which they work."""
DESCRIPTION: Final = """
Turnkeep keeps conversations and builds the context a model should see.

Send an API key as `Authorization: Bearer tk_…` or `X-API-Key`; a browser sends a conversation token (`tkc_…`) in its
place. Ids are ULIDs (UUIDs are read too), times RFC 3339 in UTC. Every error is `application/problem+json` (RFC 9457)
with a stable `code`, listed in `docs/errors.md`.

The schema of a `text/event-stream` or `application/x-ndjson` response describes one item: the `data` of one event, or
one line.
"""
_CONTACT: Final = {"name": "The maintainers of Turnkeep"}
_SERVERS: Final = (
    {"url": "/", "description": "The server that sent this document."},
    {"url": "http://127.0.0.1:8765", "description": "A server on your machine, started with `make run`."},
)
_KEY_HEADER: Final = {
    "type": "apiKey",
    "description": "The same in a header of its own.",
    "in": "header",
    "name": "X-API-Key",
}
_TAGS: Final = {
    "conversations": "Create, find, change, fork, verify and delete conversations.",
    "streaming": "Write a turn piece by piece, and resume it after a broken connection.",
    "turns": "Append turns, read the history, revise and erase.",
    "summaries": "Summarise ranges of turns, and undo a compaction.",
    "tokens": "Create and revoke conversation tokens for browsers.",
    "live": "Follow changes as server-sent events. `/asyncapi.json` describes the WebSocket.",
    "context": "Build the messages that a model should see, within a token budget.",
    "recall": "Search turns, facts and memories.",
    "facts": "Read, assert, correct and extract facts about an owner.",
    "memories": "Store, search and delete the long-term memories of an agent.",
    "lifecycle": "Two calls around each turn of an agent: load its context before, store its messages after.",
    "generation": "Let the chat model answer in a conversation, and store the answer.",
    "openai": "The OpenAI API: chat completions, embeddings, models and conversations.",
    "agent": "Ask the internal agent a question about stored conversations.",
    "governance": "Erase data with a receipt, see what is stored under an owner, and follow long operations.",
    "webhooks": "Send events to receivers of your own, see what they answered, and send events again.",
    "administration": "Manage API keys, tenants, jobs, usage and embedding spaces.",
    "operations": "Health, readiness and metrics.",
}


def openapi_document(app: FastAPI) -> dict[str, object]:
    """Return the OpenAPI document of the application, generated once."""
    if app.openapi_schema is None:
        document: dict[str, object] = get_openapi(
            title=app.title,
            version=app.version,
            description=DESCRIPTION,
            contact=_CONTACT,
            license_info={"name": "MIT", "identifier": "MIT"},
            servers=[dict(server) for server in _SERVERS],
            tags=[{"name": name, "description": description} for name, description in _TAGS.items()],
            routes=app.routes,
            webhooks=event_routes(),
            separate_input_output_schemas=False,
        )
        for complete in (
            _remove_own_problem,
            complete_events,
            add_problem_schemas,
            add_problems,
            _add_security,
            _add_examples,
        ):
            complete(document)
        app.openapi_schema = document
    return app.openapi_schema


def _operations(document: dict[str, object]) -> Iterator[dict[str, Any]]:
    paths = cast("dict[str, dict[str, dict[str, Any]]]", document["paths"])
    return (operation for operations in paths.values() for operation in operations.values())


def _remove_own_problem(document: dict[str, object]) -> None:
    """Remove the 422 that FastAPI declares for each operation that declares none, in place."""
    for operation in _operations(document):
        content = operation["responses"].get("422", {}).get("content", {})
        if "application/json" in content:
            del operation["responses"]["422"]
    schemas = cast("dict[str, dict[str, dict[str, object]]]", document["components"])["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


def _add_security(document: dict[str, object]) -> None:
    """Add the second header for a key, and mark every operation without authentication as public, in place."""
    cast("dict[str, dict[str, object]]", document["components"])["securitySchemes"] |= {"APIKeyHeader": _KEY_HEADER}
    for operation in _operations(document):
        operation["security"] = [*operation["security"], {"APIKeyHeader": []}] if "security" in operation else []


def _add_examples(document: dict[str, object]) -> None:
    """Add the recorded examples to the parameters, the bodies and the responses of their operations, in place."""
    examples = cast("dict[str, dict[str, Any]]", json.loads(EXAMPLES_PATH.read_text(encoding="utf-8")))
    for operation in _operations(document):
        example = examples.get(operation["operationId"], {})
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in example.get("parameters", {}):
                parameter["example"] = example["parameters"][parameter["name"]]
        if "request" in example:
            next(iter(operation["requestBody"]["content"].values()))["example"] = example["request"]
        if "response" in example:
            content = operation["responses"][str(example["status"])]["content"]
            next(iter(content.values()))["example"] = example["response"]
