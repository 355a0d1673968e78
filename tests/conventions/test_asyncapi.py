"""The AsyncAPI document is current, and has every frame."""

import inspect
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import BaseModel

from app.conversations.live import list_subscription
from app.conversations.schemas import frames
from app.routers.documents.asyncapi import CLOSE_CODES, asyncapi_document, client_frames
from app.routers.live import connection as sockets

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads(json.dumps(asyncapi_document(version("turnkeep"))))
FRAMES = [
    model
    for module in (frames, list_subscription)
    for name, model in inspect.getmembers(module, inspect.isclass)
    if issubclass(model, BaseModel) and name.endswith("Frame") and not name.startswith("_")
]
NEVER_SENT = sockets.GONE


def test_the_committed_asyncapi_document_is_current() -> None:
    committed = json.loads((ROOT / "openapi/asyncapi.json").read_text())
    assert committed == DOCUMENT, "run `make openapi` and commit what it wrote"


@pytest.mark.parametrize("model", FRAMES, ids=[model.__name__ for model in FRAMES])
def test_every_frame_is_a_message_that_an_operation_carries(model: type[BaseModel]) -> None:
    (name,) = [
        name
        for name, message in DOCUMENT["components"]["messages"].items()
        if message["payload"]["$ref"] == f"#/components/schemas/{model.__name__}"
    ]
    carried = {
        reference["$ref"].rpartition("/")[2]
        for operation in DOCUMENT["operations"].values()
        for side in (operation, operation.get("reply", {}))
        for reference in side.get("messages", ())
    }
    assert name in carried
    schema = DOCUMENT["components"]["schemas"][model.__name__]
    assert "type" in schema["required"]
    assert "default" not in schema["properties"]["type"]
    assert schema["properties"]["type"]["const"] == DOCUMENT["components"]["messages"][name]["name"]


def test_there_is_an_operation_for_each_frame_of_a_client_and_each_is_answered() -> None:
    received = {name: operation for name, operation in DOCUMENT["operations"].items() if "reply" in operation}
    assert len(received) == len(client_frames())
    assert all(operation["action"] == "receive" for operation in received.values())


def test_every_close_code_is_described() -> None:
    named = {name: value for name, value in vars(sockets).items() if name[0].isalpha() and name.isupper()}
    assert {code for code in named.values() if code != NEVER_SENT} == set(CLOSE_CODES)
    assert all(f"- `{code}`: " in DOCUMENT["info"]["description"] for code in CLOSE_CODES)


def test_addresses_are_those_of_the_routes() -> None:
    paths = json.loads((ROOT / "openapi/openapi.json").read_text())["paths"]
    addresses = [channel["address"] for channel in DOCUMENT["channels"].values()]
    assert len(addresses) == 3
    assert [address for address in addresses if address not in paths] == ["/v1/conversations/{conversation_id}/live"]
