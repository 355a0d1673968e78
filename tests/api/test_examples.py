"""The examples of the OpenAPI document: every one is sent, in the order of the file, and answered as it says.

After a change of the API, `TURNKEEP_RECORD_EXAMPLES=1 pytest -n 0 tests/api/test_examples.py -k recorded` writes the
responses whose members differ; a new example has an empty one. Then run `make openapi`. Ids that the server makes are
read from the recorded responses and replaced by those of the run.
"""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from app.agents.generation.responses.schemas import CreateResponse
from app.agents.generation.responses.service import ResponseOptions
from app.core.ids import format_id, new_uuid
from app.index.spaces import administration
from app.routers.documents.openapi import EXAMPLES_PATH
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.fake_openai import MODEL
from tests.support.postgres import Servers, clone_template, drop_database, make_template
from tests.support.shared import api_document

DOCUMENT: dict[str, Any] = api_document()
EXAMPLES: dict[str, dict[str, Any]] = json.loads(EXAMPLES_PATH.read_text())
RECORDING = os.environ.get("TURNKEEP_RECORD_EXAMPLES") == "1"
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
# their answers end only with the connection: tests of their own follow them
ENDLESS = {"follow_conversation", "follow_conversations"}
SECRETS = {"key": "tk_…", "token": "tkc_…", "operation_token": "ot_…", "secret": "whsec_…"}
DIMENSIONS = 8
# names that readers know, for those of the fake
NAMES = {CHAT_MODEL: "gpt-5.2", MODEL: "text-embedding-3-small"}
ENDPOINT = "https://api.openai.com/v1"
SUMMARY = {"summary": "Maya's sourdough starter smells of acetone; rye flour helps.", "abstract": "A hungry starter."}

FACT = {
    "turn": 1, "subject": "user", "predicate": "lives_in", "object": "Lisbon", "confidence": 0.9, "valid_from": None,
    "negated": False, "hypothetical": False,
}  # fmt: skip


@pytest.fixture
async def chat() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.dimensions = DIMENSIONS
        opened.reply = says("Feed it every twelve hours.")
        yield opened


@pytest.fixture
async def installation(
    servers: Servers, chat: FakeChat, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    """An installation of its own, since examples change its embedding space; with a chat model and the agent."""
    monkeypatch.setattr(administration, "_DROP_AFTER_S", 0.0)
    name = f"turnkeep_examples_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    own = await clone_template(servers, name)
    async with open_service(
        own, tmp_path_factory.mktemp("examples"), llm_model=CHAT_MODEL, llm_base_url=chat.url, llm_max_retries=0,
        enable_internal_agent=True, next_embedder="openai", next_embeddings_base_url=chat.url,
        next_embeddings_model=MODEL, next_embeddings_dimensions=DIMENSIONS, slow_call_ms=1,
    ) as opened:  # fmt: skip
        yield opened
    await drop_database(servers, name)


@pytest.fixture
async def caller(installation: Service) -> AsyncIterator[Client]:
    """A key with every scope, with an agent of its own, so that examples need no header for it."""
    async with await installation.new_tenant() as client:
        key = await installation.container.tenancy.create_key(client.tenant_id, name="examples", scopes=list(Scope))
        async with installation.client(str(key)) as opened:
            opened.tenant_id, opened.key = client.tenant_id, str(key)
            opened.headers["X-Agent-Id"] = "baker"
            yield opened


class Run:
    """The state of one run through the examples: which recorded value stands for which value of the run."""

    def __init__(self, installation: Service, chat: FakeChat, client: Client) -> None:
        self.installation, self.chat, self.client = installation, chat, client
        self.actual: dict[Any, Any] = {shown: name for name, shown in NAMES.items()}
        self.open = AsyncExitStack()

    def prepare(self, name: str) -> Callable[[], Any] | None:
        """What must have happened before an example is sent, and is no example itself."""
        return {
            "abort_turn": self.open_turn, "list_jobs": self.park_job, "list_operations": self.start_operation,
            "look_up_owner": self.own, "list_erasures": self.installation.run_jobs,
            "summarise_turns": self.summary, "get_samples": self.sample,
            "extract_facts": self.facts, "generate": self.answer, "recall": self.installation.run_jobs,
            "list_spaces": self.installation.run_jobs, "create_response": self.answer,
            "cancel_response": self.start_response,
        }.get(name)  # fmt: skip

    async def sample(self) -> None:
        self.installation.app.state.turnkeep.monitor.sample()

    async def summary(self) -> None:
        self.chat.reply = says(SUMMARY)

    async def facts(self) -> None:
        self.chat.replies = [says({"found": []}), says({"facts": [FACT]})]

    async def answer(self) -> None:
        self.chat.reply = says("Feed it every twelve hours.")

    async def open_turn(self) -> None:
        path = self.substituted(EXAMPLES["abort_turn"]["parameters"])
        body = {"turn": {"role": "assistant", "id": path["turn_id"]}}
        answer = await self.client.post(f"/v1/conversations/{path['conversation_id']}/turns/open", json=body)
        assert answer.status_code == 201

    async def start_response(self) -> None:
        """A response that is in progress; the client of this test reads no answer before its end."""
        self.chat.reply = Reply("Feed it every", stops_after=2)
        caller = await self.installation.container.tenancy.authenticate(self.client.key)
        body, options = CreateResponse(input="How often?"), ResponseOptions(None, None, False, None)
        stream = await self.open.enter_async_context(
            self.installation.container.responses.streaming(caller, body, options)
        )
        events = stream.events
        self.open.push_async_callback(events.aclose)
        first: Any = await anext(events)
        while (await anext(events))["type"] != "response.content_part.added":
            pass
        self.actual[EXAMPLES["cancel_response"]["parameters"]["response_id"]] = first["response"]["id"]

    async def park_job(self) -> None:
        recorded, job = EXAMPLES["retry_job"]["parameters"]["job_id"], new_uuid()
        self.actual[recorded] = format_id(job)
        async with self.installation.container.database.transaction(self.client.tenant_id) as tx:
            await tx.execute(
                "insert into jobs (tenant_id, id, kind, max_attempts, state, attempts, last_error)"
                " values ($1, $2, 'summaries.compact', 5, 'parked', 5, 'model_unavailable')",
                self.client.tenant_id,
                job,
            )

    async def start_operation(self) -> None:
        answer = await self.client.post("/v1/erasures", json={"owner": "user-42"})
        self.actual[EXAMPLES["get_operation"]["parameters"]["operation_id"]] = answer.json()["id"]

    async def own(self) -> None:
        conversation = await self.client.conversation(owner="user-41", title="Rye bread", participants=["user-41"])
        await self.client.append(
            conversation, {"role": "user", "actor": "user-41", "content": "How long does rye rise?"}
        )
        memory = {"content": "Bakes on Sundays.", "owner": "user-41"}
        assert (await self.client.post("/v1/memories", json=memory)).status_code == 201

    def substituted(self, value: Any) -> Any:
        match value:
            case dict():
                return {name: self.substituted(member) for name, member in value.items()}
            case list():
                return [self.substituted(item) for item in value]
            case str():
                return self.actual.get(value, value)
            case _:
                return value

    def recorded(self, value: Any) -> Any:
        """The inverse of `substituted`: a response with the ids that the document shows already."""
        names = {given: shown for shown, given in self.actual.items()}
        match value:
            case dict():
                return {name: self.recorded(member) for name, member in value.items()}
            case list():
                return [self.recorded(item) for item in value]
            case str():
                return names.get(value, value)
            case _:
                return value

    def learn(self, recorded: Any, given: Any) -> None:
        """Record which texts of the document stand for which of this run."""
        match recorded, given:
            case dict(), dict():
                for name in recorded.keys() & given.keys():
                    self.learn(recorded[name], given[name])
            case list(), list():
                for one, other in zip(recorded, given, strict=False):
                    self.learn(one, other)
            # ids and tokens that other examples may send; those that the caller chose stand for themselves
            case str(), str() if len(recorded) > 20 and " " not in recorded:
                self.actual.setdefault(recorded, given)
            case _:
                pass


def request_of(name: str, run: Run) -> dict[str, Any]:
    method, path, operation = OPERATIONS[name]
    places = {parameter["name"]: parameter["in"] for parameter in operation.get("parameters", ())}
    given = run.substituted(EXAMPLES[name].get("parameters", {}))
    inside = {key: value for key, value in given.items() if places[key] == "path"}
    request: dict[str, Any] = {"method": method.upper(), "url": path.format(**inside)}
    request["params"] = {key: value for key, value in given.items() if places[key] == "query"}
    if "request" in EXAMPLES[name]:
        body = run.substituted(EXAMPLES[name]["request"])
        request["content" if isinstance(body, str) else "json"] = body
    return request


def members(value: Any) -> Iterator[str]:
    """The names of all members, with those of the objects that they are in."""
    match value:
        case dict():
            for name, member in value.items():
                yield name
                yield from (f"{name}/{inner}" for inner in members(member))
        case list() if value:
            yield from members(value[0])
        case _:
            pass


def shown(text: str, names: dict[str, str]) -> str:
    for name, instead in names.items():
        text = text.replace(name, instead)
    return text


def redacted(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: SECRETS[name] if name in SECRETS and isinstance(member, str) else redacted(member)
                for name, member in value.items()
            }
        case list():
            return [redacted(item) for item in value]
        case _:
            return value


@pytest.mark.slow
async def test_every_example_is_sent_and_answered_as_recorded(
    installation: Service, chat: FakeChat, caller: Client
) -> None:
    run = Run(installation, chat, caller)
    for name, example in EXAMPLES.items():
        if name in ENDLESS:
            continue
        if (prepare := run.prepare(name)) is not None:
            await prepare()
        response: httpx.Response = await caller.request(**request_of(name, run))
        assert response.status_code == example["status"], (name, response.text)
        if not response.content or response.headers["content-type"] != "application/json":
            continue
        answer = json.loads(shown(response.text, NAMES | {chat.url: ENDPOINT}))
        run.learn(example.get("response"), answer)
        answered = redacted(answer)
        if RECORDING and set(members(answered)) != set(members(example["response"])):
            example["response"] = run.recorded(answered)
        assert set(members(answered)) == set(members(example["response"])), name
    await run.open.aclose()
    if RECORDING:
        EXAMPLES_PATH.write_text(json.dumps(EXAMPLES, indent=1, ensure_ascii=False) + "\n")


def test_a_recording_replaces_ids_and_leaves_what_was_said() -> None:
    run = Run.__new__(Run)
    run.actual = {}
    recorded = {"id": "01K9Z3V5Q8T4XAMP1E00000011", "content": "How warm should the dough be?"}
    run.learn(recorded, {"id": "01M82FA9GZTMAQS420F8SFCYNT", "content": "Facts that are known of Maya"})
    assert run.substituted(recorded) == recorded | {"id": "01M82FA9GZTMAQS420F8SFCYNT"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_examples_that_its_schemas_accept(name: str) -> None:
    _, _, operation = OPERATIONS[name]
    assert name in EXAMPLES, f"add an example to {EXAMPLES_PATH.name}"
    example = EXAMPLES[name]
    bodies = [operation["requestBody"]["content"]] if "requestBody" in operation else []
    assert ("request" in example) == bool(bodies)
    answer = operation["responses"][str(example["status"])].get("content", {})
    declared = [next(iter(content.values())) for content in bodies]
    declared += list(answer.values())[:1]
    for content in declared:
        assert "example" in content
        if "schema" in content:
            check(content["schema"], content["example"])
    for parameter in operation.get("parameters", ()):
        if parameter["required"]:
            check(parameter["schema"], parameter["example"])


def check(schema: dict[str, Any], value: Any) -> None:
    Draft202012Validator(schema | {"components": DOCUMENT["components"]}).validate(value)


async def test_the_schemas_of_turns_take_shapes_that_they_do_not_name(client: Client) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "hologram", "angle": 1}, {"type": "image", "image_url": {"url": "x"}}]},
        {"role": "assistant", "tool_calls": [
            {"id": "c1", "name": "f", "arguments": {"a": 1}, "more": 1},
            {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_results": [
            {"tool_call_id": "c1", "content": [{"type": "hologram"}], "is_error": True},
            {"tool_call_id": "c2", "content": "done", "more": 1},
        ]},
    ]  # fmt: skip
    for turn in turns:
        check({"$ref": "#/components/schemas/TurnInput"}, turn)
    answer = await client.append(await client.conversation(), *turns)
    for given, kept in zip(turns, answer["turns"], strict=True):
        check({"$ref": "#/components/schemas/Turn"}, kept)
        assert given.items() <= kept.items()


def test_parts_calls_messages_and_hits_have_types() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    turn = schemas["Turn"]["properties"]
    parts = {"type": "array", "items": {"$ref": "#/components/schemas/ContentPart"}}
    assert parts in turn["content"]["anyOf"]
    assert turn["tool_calls"]["items"] == {"$ref": "#/components/schemas/ToolCall"}
    assert turn["tool_results"]["items"] == {"$ref": "#/components/schemas/ToolOutput"}
    for model, member in (("Context", "messages"), ("Generate", "messages"), ("TurnContext", "input_items")):
        assert schemas[model]["properties"][member]["items"] == {"$ref": "#/components/schemas/Message"}
    hits = schemas["RecallResult"]["properties"]["data"]["items"]["discriminator"]
    assert hits["propertyName"] == "kind"
    assert set(hits["mapping"]) == {"turn", "fact", "summary", "memory"}
