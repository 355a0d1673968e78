"""Rules that every route keeps."""

import json
from inspect import iscoroutinefunction, isfunction
from pathlib import Path
from typing import get_type_hints

import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from app.core.error_codes import ERROR_CODES
from app.core.ids import ID_PATTERN
from app.main import create_app
from app.routers.http.dependencies import get_caller
from app.settings import Settings
from app.tenancy.schemas import Caller
from tests.support.shared import api_document, make_document

ROOT = Path(__file__).parents[2]
DOCUMENT = api_document()
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, operations in DOCUMENT["paths"].items()  # type: ignore[attr-defined]
    for method, operation in operations.items()
]
PUBLIC = {"get_health", "head_health", "get_readiness", "head_readiness", "get_metrics"}


def test_the_committed_openapi_document_is_current() -> None:
    committed = json.loads((ROOT / "openapi/openapi.json").read_text())
    assert committed == json.loads(json.dumps(DOCUMENT)), "run `make openapi` and commit what it wrote"


def test_every_id_in_a_path_has_the_pattern_of_the_ids_that_are_read() -> None:
    for name, operation in OPERATIONS:
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            if parameter["in"] == "path" and schema["type"] == "string" and " /openai/" not in name:
                assert schema["pattern"] == ID_PATTERN, name


@pytest.mark.slow
def test_the_document_is_the_same_for_all_settings() -> None:
    """So the apps of all tests can share one."""
    url = "http://127.0.0.1:1/v1"
    settings = Settings(
        embedder="none", next_embedder="openai", next_embeddings_base_url=url, next_embeddings_model="m",
        llm_model="m", llm_base_url=url, enable_internal_agent=True, worker_in_process=False, migrate_on_start=False,
    )  # fmt: skip
    for app in (create_app(Settings()), create_app(settings)):
        app.openapi_schema = None
        assert json.dumps(make_document(app)) == json.dumps(DOCUMENT)


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_operation_is_described_secured_and_declares_its_problems(name: str, operation: dict) -> None:
    assert operation["description"].strip(), "the docstring is what users read"
    assert operation["operationId"].replace("_", "").isalpha()
    if operation["operationId"] in PUBLIC:
        assert operation["security"] == []
        return
    assert operation["security"], "every route has auth or is on the short public list"
    problems = {status for status in operation["responses"] if int(status) >= 400}
    assert {"401", "403", "400" if " /openai/" in name else "422", "503"} <= problems
    assert not any("application/json" in operation["responses"][status]["content"] for status in problems), (
        "every error is problem+json"
    )
    if "{" in name:
        assert "404" in problems
    if "requestBody" in operation:
        assert {"400", "408", "413", "415"} <= problems


def test_every_tag_is_declared_with_a_sentence_and_used() -> None:
    tags = DOCUMENT["tags"]
    assert all(tag["description"].endswith(".") for tag in tags)  # type: ignore[attr-defined]
    used = {name for _, operation in OPERATIONS for name in operation["tags"]}
    assert sorted(used) == sorted(tag["name"] for tag in tags)  # type: ignore[attr-defined]


def test_a_problem_names_every_code_of_the_catalogue() -> None:
    code = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]  # type: ignore[index]
    assert code["enum"] == sorted(ERROR_CODES)
    assert "A later release may add codes" in code["description"]


def test_the_document_uses_nothing_that_is_newer_than_openapi_3_1() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert "itemSchema" not in json.dumps(DOCUMENT)


def test_the_data_of_events_is_distinguished_by_type() -> None:
    for path in ("/v1/events", "/v1/conversations/{conversation_id}/events"):
        answer = DOCUMENT["paths"][path]["get"]["responses"]["200"]  # type: ignore[index]
        schema = answer["content"]["text/event-stream"]["schema"]
        for kind, place in schema["discriminator"]["mapping"].items():
            frame = DOCUMENT["components"]["schemas"][place.rpartition("/")[2]]  # type: ignore[index]
            assert frame["properties"]["type"]["const"] == kind
            assert "type" in frame["required"]


def test_operation_ids_are_unique() -> None:
    names = [operation["operationId"] for _, operation in OPERATIONS]
    assert len(names) == len(set(names))


def test_every_list_has_paging() -> None:
    for name, operation in OPERATIONS:
        schema = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if "Page" in schema.get("$ref", ""):
            parameters = {parameter["name"] for parameter in operation.get("parameters", [])}
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
                parameters |= set(DOCUMENT["components"]["schemas"][body]["properties"])  # type: ignore[index]
            assert {"limit", "cursor", "order"} <= parameters, name


def test_every_route_declares_a_typed_return_model() -> None:
    for context in iter_route_contexts(create_app(Settings()).routes):
        if getattr(context, "include_in_schema", False) and getattr(context, "status_code", None) != 204:
            bare = {"get_metrics", "head_health", "head_readiness"}
            assert context.response_field is not None or context.name in bare, context.path


def test_every_router_has_its_prefix_itself() -> None:
    """A prefix of `include_router` would not be in the templates that logs and metrics name routes by."""
    for context in iter_route_contexts(create_app(Settings()).routes):
        if isinstance(context.original_route, APIRoute):
            assert context.original_route.path_format == context.path_format


def test_every_route_that_answers_in_events_declares_them() -> None:
    declaring = {
        operation["operationId"]
        for _, operation in OPERATIONS
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }
    # each makes the response itself, or by the one helper that does
    answering = {
        str(context.name)
        for context in iter_route_contexts(create_app(Settings()).routes)
        if getattr(context, "include_in_schema", False)
        and {"EventStream", "_stream", "open_stream"} & set(context.endpoint.__code__.co_names)  # type: ignore[union-attr]
    }
    assert declaring == answering
    assert {"follow_conversation", "generate", "create_chat_completion"} < answering


def test_every_list_like_input_is_bounded() -> None:
    """A limit on everything: arrays and texts that callers send have a bound, here or in a named setting."""
    for name, schema in DOCUMENT["components"]["schemas"].items():  # type: ignore[index]
        if schema.get("additionalProperties") is not False:
            continue  # only what callers send forbids unknown members
        for member, shape in schema.get("properties", {}).items():
            for option in shape.get("anyOf", [shape]):
                if (name, member) in {("TurnInput", "content"), ("Revision", "content")} and option.get(
                    "type"
                ) == "string":
                    continue  # max_text_bytes bounds it, in bytes
                if option.get("type") == "array":
                    assert "maxItems" in option, f"{name}.{member}"
                if option.get("type") == "string" and "format" not in option and "enum" not in option:
                    assert "maxLength" in option or "const" in option, f"{name}.{member}"


def test_a_route_authorises_by_one_dependency_and_not_in_its_body() -> None:
    for context in iter_route_contexts(create_app(Settings()).routes):
        if getattr(context, "include_in_schema", False) and context.name not in PUBLIC:
            calls = [one.call for one in context.dependant.dependencies]  # type: ignore[union-attr]
            functions = [(call, call if isfunction(call) else type(call).__call__) for call in calls]
            authorising = [call for call, function in functions if get_type_hints(function).get("return") is Caller]
            assert len(authorising) == 1, context.path
            assert authorising[0] is not get_caller, f"{context.path} checks no scope"
            names = set(context.endpoint.__code__.co_names)  # type: ignore[union-attr]
            assert not names & {"require", "require_conversation", "require_long_term", "scopes"}, context.path


def test_no_route_and_no_dependency_runs_in_a_thread() -> None:
    """FastAPI runs every function that is not async in its thread pool, which takes longer than most of ours."""
    contexts = iter_route_contexts(create_app(Settings()).routes)
    dependants = (getattr(context, "dependant", None) for context in contexts)
    waiting = [dependant for dependant in dependants if dependant is not None]
    assert len(waiting) > 80
    while waiting:
        dependant = waiting.pop()
        waiting += dependant.dependencies
        call = dependant.call
        assert iscoroutinefunction(call) or iscoroutinefunction(type(call).__call__), call


def test_the_tenant_of_a_caller_is_taken_from_the_guarded_property() -> None:
    """`key_tenant_id` tells the tenant of a token's holder too, whom it would let in: it is for logs and the audit."""
    allowed = {
        "app/tenancy/schemas.py", "app/tenancy/service.py", "app/routers/http/dependencies.py",
        "app/routers/live/connection_limits.py", "app/mcp/endpoint.py", "app/tenancy/limits/rates.py",
        "app/audit/schemas.py", "app/audit/record.py", "app/audit/service.py",
    }  # fmt: skip
    using = {
        str(path.relative_to(ROOT)) for path in (ROOT / "app").rglob("*.py") if "key_tenant_id" in path.read_text()
    }
    assert using == allowed
