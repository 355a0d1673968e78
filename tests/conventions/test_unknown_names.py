"""An unknown name in what a caller sends is refused and named: in bodies, queries, frames and arguments of tools."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from app.agents.tools.service import all_tools
from app.agents.tools.tool import error_text
from app.conversations.schemas.frames import ClientFrame
from app.core.errors import Invalid
from app.core.validation.strict import SPELLINGS
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on
from tests.support.mcp import call, post
from tests.support.shared import api_document

NAME = "frobnicate"
DETAIL = f"Unknown field `{NAME}`."
ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
DOCUMENT: dict[str, Any] = api_document()
FRAMES: dict[str, Any] = TypeAdapter(ClientFrame).json_schema()
TOOLS = {tool.name: tool for tool in all_tools()}
Path = tuple[str | int, ...]

# probes of load balancers and monitors may carry parameters of their own, and must not fail by them
UNCHECKED_QUERIES = {"get_health", "head_health", "get_readiness", "head_readiness", "get_metrics"}


def operations() -> Iterator[Any]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            # under /openai what is not known passes through
            if not path.startswith("/openai/"):
                yield pytest.param(method.upper(), path, operation, id=operation["operationId"])


def objects(schema: dict[str, Any], whole: dict[str, Any], at: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every object of declared fields in a schema, with its path; an item is the first of its list."""
    if "$ref" in schema:
        named: Any = whole
        for step in schema["$ref"].split("/")[1:]:
            named = named[step]
        yield from objects(named, whole, at)
        return
    if schema.get("additionalProperties") is True:
        return  # an object of a provider, which is kept as given
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from objects(branch, whole, at)
    if "items" in schema:
        yield from objects(schema["items"], whole, (*at, 0))
    if "properties" in schema:
        yield at, schema
        for name, member in schema["properties"].items():
            yield from objects(member, whole, (*at, name))


def with_unknown(at: Path, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with an unknown field at a path, and nothing else but `base`."""
    made: Any = {NAME: 1}
    for step in reversed(at):
        made = [made] if step == 0 else {step: made}
    return (base or {}) | made


def pointer(at: Path) -> str:
    return "".join(f"/{step}" for step in (*at, NAME))


def named(errors: list[dict[str, Any]]) -> dict[str, str]:
    return {error["pointer"]: error["detail"] for error in errors}


@pytest.fixture(scope="module")
async def admin(service: Service) -> AsyncIterator[Client]:
    """A client that every operation takes."""
    async with await service.new_tenant() as owner:
        key = await service.container.tenancy.create_key(owner.tenant_id, name="all", scopes=list(Scope))
        async with service.client(str(key)) as client:
            client.key = str(key)
            yield client


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


def filled(path: str) -> str:
    return path.format(**dict.fromkeys(re.findall(r"{(\w+)}", path), ID) | {"space_id": 1})


@pytest.mark.parametrize(("method", "path", "operation"), list(operations()))
async def test_every_object_of_every_body_refuses_an_unknown_field_by_name(
    admin: Client, method: str, path: str, operation: dict[str, Any]
) -> None:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:  # no body, or lines of a file
        return
    schema = content["application/json"]["schema"]
    found = dict(objects(schema, DOCUMENT))
    assert () in found
    for at, shape in found.items():
        assert shape["additionalProperties"] is False, (at, "what callers send is a Strict model")
        answer = await admin.request(method, filled(path), json=with_unknown(at))
        body = problem(answer, 422, "invalid_request", pointer(at))
        assert named(body["errors"])[pointer(at)] == DETAIL


@pytest.mark.parametrize(("method", "path", "operation"), list(operations()))
async def test_every_query_refuses_an_unknown_parameter_by_name(
    admin: Client, method: str, path: str, operation: dict[str, Any]
) -> None:
    if operation["operationId"] in UNCHECKED_QUERIES:
        return
    known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    elsewhere = [one["name"] for one in operation.get("parameters", ()) if one["in"] != "query"]
    for name in [NAME, *elsewhere, *(f"{one}x" for one in known)]:
        body = problem(await admin.request(method, filled(path), params={name: "1"}), 422, "invalid_request")
        [error] = body["errors"]
        assert (error["in"], error["pointer"]) == ("query", f"/{name}")
        assert error["detail"].startswith(f"Unknown query parameter `{name}`."), error
        assert (f"Did you mean `{name[:-1]}`?" in error["detail"]) == (name[:-1] in known)


async def test_every_frame_refuses_an_unknown_field_by_name(client: Client, port: int) -> None:
    conversation = await client.conversation()
    async with socket_on(port, conversation, client.key) as socket:
        for branch in FRAMES["oneOf"]:
            found = dict(objects(branch, FRAMES))
            kind = found[()]["properties"]["type"]["const"]
            for at in found:
                answer = await socket.ask(kind, **with_unknown(at))
                assert (answer["type"], answer["code"]) == ("error", "invalid_request"), (kind, at)
                assert named(answer["errors"])[pointer(at)] == DETAIL, (kind, at)


@pytest.mark.parametrize("name", TOOLS)
async def test_every_tool_refuses_an_unknown_argument_by_name(client: Client, port: int, name: str) -> None:
    schema = TOOLS[name].input_schema
    if name == "ask_agent":  # not offered by this installation
        with pytest.raises(Invalid) as refusal:
            TOOLS[name].prepare({NAME: 1})
        assert DETAIL in error_text(refusal.value, frozenset())
        return
    async with httpx.AsyncClient(timeout=60) as http:
        for at in dict(objects(schema, schema)):
            answer = await post(http, port, client.key, call(name, with_unknown(at)))
            result = answer.json()["result"]
            assert result["isError"]
            assert named(result["structuredContent"]["errors"])[pointer(at)] == DETAIL, at


def test_no_name_is_another_name_of_two_fields_of_one_object() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name, schema in schemas.items():
        fields = schema.get("properties", {}).keys() & SPELLINGS.keys()
        taken = [other for one in fields for other in (one, *SPELLINGS[one])]
        assert len(taken) == len(set(taken)), name
