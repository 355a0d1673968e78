"""Recall for an evaluation: in another embedding space, and with other weights, for administrators."""

from typing import Any

import pytest

from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem


@pytest.fixture
async def conversation(client: Client) -> str:
    made = await client.conversation()
    await client.append(
        made, "the quokka sleeps in the shade", "wombats dig burrows at night", "a quokka eats leaves of the shade tree"
    )
    return made


async def ask(client: Client, path: str = "/v1/recall", **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json={"query": "where does the quokka sleep", "explain": True} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_weights_of_a_request_change_scores_and_are_explained(client: Client, conversation: str) -> None:
    usual = await ask(client)
    assert {hit["explain"]["configuration"] != {} for hit in usual["data"]} == {False}
    assert usual["data"][0]["relevance"] is not None
    for path in ("/v1/recall", f"/v1/conversations/{conversation}/recall"):
        changed = await ask(client, path, configuration={"words": 0.0, "share": 0.0, "meaning": 1.4})
        for hit in changed["data"]:
            explained = hit["explain"]
            assert explained["configuration"] == {"words": 0.0, "share": 0.0, "meaning": 1.4}
            assert (explained["terms"]["words"], explained["terms"]["share"]) == (0.0, 0.0)
            # measured for the usual weights only
            assert hit["relevance"] is None
            [before] = [one for one in usual["data"] if one["id"] == hit["id"]]
            assert explained["terms"]["meaning"] == pytest.approx(2 * before["explain"]["terms"]["meaning"], abs=1e-4)
    assert await ask(client, configuration={}) == usual
    assert await ask(client) == usual


async def test_a_space_is_chosen_by_its_id(client: Client, service: Service, conversation: str) -> None:
    space = service.container.index.spaces.current.space.id
    usual = await ask(client)
    assert await ask(client, space=space) == usual
    problem(await client.post("/v1/recall", json={"query": "x", "space": space + 1000}), 409, "space_not_configured")
    assert usual["space"] == service.container.index.spaces.current.name
    assert conversation in {hit["conversation_id"] for hit in usual["data"]}


@pytest.mark.parametrize("chosen", [{"space": 1}, {"configuration": {"words": 1.0}}])
async def test_who_only_reads_chooses_neither(client: Client, service: Service, chosen: dict[str, Any]) -> None:
    text = await service.container.tenancy.create_key(client.tenant_id, name="reader", scopes=[Scope.READ, Scope.WRITE])
    async with service.client(str(text)) as reader:
        problem(await reader.post("/v1/recall", json={"query": "x"} | chosen), 403, "forbidden")
        assert (await reader.post("/v1/recall", json={"query": "x", "configuration": {}})).status_code == 200


@pytest.mark.parametrize(
    ("chosen", "pointer"),
    [
        ({"space": 0}, "/space"),
        ({"space": "local"}, "/space"),
        ({"configuration": {"words": 5.1}}, "/configuration/words"),
        ({"configuration": {"words": -0.1}}, "/configuration/words"),
        ({"configuration": {"half_words": 0.0}}, "/configuration/half_words"),
        ({"configuration": {"slope": 1.0}}, "/configuration/slope"),
    ],
)
async def test_weights_and_spaces_have_bounds(client: Client, chosen: dict[str, Any], pointer: str) -> None:
    problem(await client.post("/v1/recall", json={"query": "x"} | chosen), 422, "invalid_request", pointer)
