"""Recall: what is appended is found, by words and by meaning, k of k, explained."""

import json
from typing import Any

import pytest

from app.core.errors import Unavailable
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service, problem

PETS = [
    {"role": "user", "actor": "Caroline", "content": "My dog Pepper hates the vacuum cleaner."},
    {"role": "user", "actor": "Melanie", "content": "Hey Caroline! We adopted two kittens last week."},
    {"role": "user", "actor": "Caroline", "content": "I research adoption agencies these days."},
    {"role": "user", "actor": "Melanie", "content": "The invoice number is INV-20931."},
]


async def pets(client: Client) -> str:
    conversation = await client.conversation(participants=["Caroline", "Melanie"])
    await client.append(conversation, *PETS)
    return conversation


def texts(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["text"] for hit in hits]


async def test_what_is_appended_is_found_by_the_next_call(client: Client) -> None:
    conversation = await pets(client)
    assert texts(await client.recall(conversation, "What is the dog called?", k=1)) == [PETS[0]["content"]]
    await client.append(conversation, "The dog is called Salt now.")
    found = await client.recall(conversation, "called Salt", k=1)
    assert found[0]["turn"]["seq"] == 5


async def test_each_mode_finds_by_what_it_searches(client: Client) -> None:
    conversation = await pets(client)
    exact = await client.recall(conversation, "INV-20931", mode="text")
    assert texts(exact) == [PETS[3]["content"]]
    by_meaning = await client.recall(conversation, "feline pets", mode="vector", k=1)
    assert texts(by_meaning) == [PETS[1]["content"]]
    assert await client.recall(conversation, "feline", mode="text") == []


async def test_the_actor_a_query_names_is_preferred_to_whom_addresses_it(client: Client) -> None:
    conversation = await pets(client)
    best = (await client.recall(conversation, "What did Caroline research?", k=1, explain=True))[0]
    assert best["text"] == PETS[2]["content"]
    assert best["explain"]["terms"]["speaker"] > 0
    assert "the query is about this speaker" in best["explain"]["reason"]


async def test_k_rows_in_scope_give_k_rows_under_any_filter(client: Client) -> None:
    conversation = await client.conversation(owner="ann", project="p")
    turns = [
        {
            "role": "user" if n % 2 else "assistant",
            "actor": f"a{n % 3}",
            "content": f"row {n}",
            "metadata": {"m": n % 5},
            "occurred_at": f"2024-01-{n + 1:02}T00:00:00Z",
        }
        for n in range(28)
    ]
    await client.append(conversation, *turns)
    for filters, count in (
        ({}, 28),
        ({"actors": ["a1"]}, 9),
        ({"actors": ["a1", "a2"]}, 18),
        ({"roles": ["assistant"]}, 14),
        ({"metadata": {"m": 3}}, 5),
        ({"occurred_after": "2024-01-10T00:00:00Z"}, 18),
        ({"occurred_after": "2024-01-10T00:00:00Z", "occurred_before": "2024-01-12T00:00:00Z"}, 1),
        ({"actors": ["a0"], "roles": ["user"], "metadata": {"m": 4}}, 1),
        ({"actors": ["nobody"]}, 0),
    ):
        for scope in (conversation, None):
            hits = await client.recall(scope, "something else entirely", k=50, filters=filters)
            assert len(hits) == count, filters
            assert len({hit["id"] for hit in hits}) == count
            assert len(await client.recall(scope, "anything", k=3, filters=filters, mode="vector")) == min(3, count)


async def test_scopes_narrow_to_project_owner_and_conversations(client: Client) -> None:
    places = {}
    for project, owner in (("p", "ann"), ("p", "bob"), ("q", "ann")):
        made = await client.conversation(project=project, owner=owner)
        await client.append(made, f"the parrot of {owner} in {project}")
        places[project, owner] = made

    async def found(**scope: Any) -> set[str]:
        return {hit["conversation_id"] for hit in await client.recall(None, "parrot", **scope)}

    assert await found() == set(places.values())
    assert await found(project="p") == {places["p", "ann"], places["p", "bob"]}
    assert await found(owner="ann") == {places["p", "ann"], places["q", "ann"]}
    assert await found(owner="ann", project="q") == {places["q", "ann"]}
    assert await found(conversation_ids=[places["p", "bob"], places["q", "ann"]]) == {
        places["p", "bob"],
        places["q", "ann"],
    }
    assert await found(kinds=["summary"]) == set()


async def test_wide_and_narrow_scope_score_alike(client: Client) -> None:
    conversation = await pets(client)
    narrow = await client.recall(conversation, "Which kittens were adopted?", explain=True)
    wide = await client.recall(None, "Which kittens were adopted?", explain=True)
    assert [(hit["id"], hit["score"]) for hit in narrow] == [(hit["id"], hit["score"]) for hit in wide]


async def test_neighbours_stand_beside_a_hit_in_order(client: Client) -> None:
    conversation = await pets(client)
    hit = (await client.recall(conversation, "adoption agencies research", k=1, neighbours=1))[0]
    assert [turn["seq"] for turn in hit["neighbours"]] == [2, 4]
    assert (await client.recall(conversation, "adoption agencies", k=1))[0]["neighbours"] is None


async def test_explain_adds_up_to_the_score(client: Client) -> None:
    conversation = await pets(client)
    for hit in await client.recall(conversation, "kittens and dogs", explain=True):
        parts = hit["explain"]
        assert abs(sum(parts["terms"].values()) - hit["score"]) < 1e-4
        assert parts["terms"]["meaning"] > 0
        assert parts["words"] == ["kitten", "dog"]


async def test_a_threshold_drops_what_is_too_far(client: Client) -> None:
    conversation = await pets(client)
    hits = await client.recall(conversation, "dog", threshold=0.3, explain=True)
    assert 0 < len(hits) < len(PETS)
    assert all(hit["explain"]["cosine"] >= 0.3 for hit in hits)


async def test_scripts_without_spaces_and_diacritics_are_found_by_words(client: Client) -> None:
    conversation = await client.conversation()
    lines = [
        "我明天要去北京大学参加考试",
        "お誕生日おめでとうございます",
        "Žluťoučký kůň v café",
        "ภาษาไทยง่ายมาก",
        "한국어를 공부합니다",
    ]
    await client.append(conversation, *lines, "nothing of the kind")
    for query, line in (("北京", 0), ("誕生日", 1), ("cafe kun", 2), ("ไทย", 3), ("공부", 4), ("猫", None)):
        hits = await client.recall(conversation, query, mode="text")
        assert texts(hits)[:1] == ([] if line is None else [lines[line]]), query


async def test_hostile_queries_are_only_words(client: Client) -> None:
    conversation = await pets(client)
    for query in (
        "'); drop table turns; --",
        "a & b | !c <-> d:*",
        "\\' \\\\ '' \"",
        "((((",
        "the of and",
        "🐶",
        "%_%",
    ):
        assert len(await client.recall(conversation, query, k=4)) == 4, query
        await client.recall(conversation, query, mode="text")
        await client.recall(None, query)


async def test_system_turns_are_not_recalled(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, {"role": "system", "content": "secret parrot"}, "a parrot")
    assert texts(await client.recall(conversation, "parrot")) == ["a parrot"]


async def test_tool_calls_and_results_are_found(client: Client) -> None:
    conversation = await client.conversation()
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "lookup", "arguments": '{"city":"Reykjavik"}'}]}
    await client.append(conversation, call, {"role": "tool", "tool_call_id": "c1", "content": "Drizzle, 4 degrees"})
    assert (await client.recall(conversation, "Reykjavik", mode="text"))[0]["turn"]["seq"] == 1
    assert (await client.recall(conversation, "drizzle", mode="text"))[0]["turn"]["seq"] == 2


@pytest.mark.slow
async def test_long_text_is_found_by_its_end(client: Client) -> None:
    conversation = await client.conversation()
    filler = "The committee discussed the agenda of the meeting. " * 200
    await client.append(
        conversation, filler + "Penguins waddle on the ice of Antarctica.", filler, "Ice cream is cold."
    )
    # a long text must be nearer than a short one, because its best piece is nearer by chance
    found = [hit["turn"]["seq"] for hit in await client.recall(conversation, "antarctic birds that cannot fly")]
    assert found.index(1) < found.index(2)
    assert (await client.recall(conversation, "do penguins live in Antarctica?", k=1))[0]["turn"]["seq"] == 1


async def test_memories_need_an_agent_below_admin(service: Service, client: Client) -> None:
    key = await service.container.tenancy.create_key(client.tenant_id, name="r", scopes=[Scope.READ])
    async with service.client(str(key)) as reader:
        response = await reader.post("/v1/recall", json={"query": "x", "kinds": ["memory"]})
        assert (response.status_code, response.json()["code"]) == (422, "agent_id_required")
        assert await reader.recall(None, "x", kinds=["memory"], agent_id="default") == []


async def test_without_an_embedder_recall_goes_by_words_and_says_so(service: Service, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("text-only")
    async with open_service(service.database, folder, embedder="none") as text_only:
        client = await text_only.new_tenant()
        conversation = await pets(client)
        response = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": "kittens"})
        assert texts(response.json()["data"]) == [PETS[1]["content"]]
        assert response.json()["degraded"] == ["embedder_none"]
        assert response.json()["space"] is None
        context = await client.context(conversation, 500, semantic_recall={"k": 2})
        assert context["degraded"] == ["embedder_none"]
        await client.aclose()


async def test_a_failing_embedder_loses_no_turn(service: Service, client: Client, monkeypatch: Any) -> None:
    async def fail(*_args: object, **_options: object) -> None:
        raise Unavailable("embedder_overloaded", "Too much to embed.")

    conversation = await pets(client)
    monkeypatch.setattr(service.container.embedder, "embed", fail)
    result = await client.append(conversation, "The tortoise is called Shelly.")
    assert result["turns"][0]["index_state"] == "pending"
    monkeypatch.undo()
    response = (
        await client.post(f"/v1/conversations/{conversation}/recall", json={"query": "tortoise", "k": 5})
    ).json()
    assert response["degraded"] == ["vectors_pending"]
    assert response["data"][0]["text"] == "The tortoise is called Shelly."
    assert len(response["data"]) == 5


@pytest.mark.slow
async def test_the_answer_to_a_question_is_found_by_the_words_of_the_question(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    talk = [f"Unrelated remark number {n}, nothing more." for n in range(150)]
    talk[70] = "Which instrument do you play in the orchestra?"
    turns = [{"role": "user", "actor": ("ann", "bob")[n % 2], "content": text} for n, text in enumerate(talk)]
    turns[71]["content"] = "Mostly second violin, since I was seven."
    await client.append(conversation, *turns)
    await service.run_jobs()  # which make the vectors that were too many for the append
    found = texts(await client.recall(conversation, "Who plays an instrument in the orchestra?", k=2))
    assert found == [turns[71]["content"], talk[70]]


async def test_a_context_may_recall_more_than_a_search_gives_at_once(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[f"parrot number {n}" for n in range(400)])
    context = await client.context(conversation, 100_000, recent_turns=300, semantic_recall={"k": 100}, query="parrot")
    assert len(context["included"]["turn_ids"]) >= 380


async def test_turns_without_a_vector_still_compete_after_an_embedder_is_there(
    service: Service, client: Client, tmp_path_factory: Any
) -> None:
    async with open_service(service.database, tmp_path_factory.mktemp("bare"), embedder="none") as text_only:
        bare = text_only.client(client.key)
        conversation = await bare.conversation()
        await bare.append(conversation, "one parrot", "two parrots", "three cats")
        await bare.aclose()
    await client.append(conversation, "four parrots")
    for mode in ("hybrid", "vector"):
        body = {"query": "parrot", "k": 4, "mode": mode}
        response = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()
        assert len(response["data"]) == 4
        assert response["degraded"] == ["vectors_pending"]


async def test_an_answer_in_lines_has_a_hit_per_line_and_an_end(client: Client) -> None:
    conversation = await pets(client)
    lines = {"Accept": "application/x-ndjson"}
    for path in ("/v1/recall", f"/v1/conversations/{conversation}/recall"):
        body = {"query": "kittens\nand dogs", "k": 3, "explain": True, "neighbours": 1}
        whole = (await client.post(path, json=body)).json()
        answer = await client.post(path, json=body, headers=lines)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.text.endswith("\n")
        *hits, end = [json.loads(line) for line in answer.text.splitlines()]
        assert hits == whole["data"]
        assert end == {"object": "end", "count": 3, "space": whole["space"], "degraded": []}
        problem(await client.post(path, json={"query": " "}, headers=lines), 422, "invalid_request", "/query")
    nothing = await client.post("/v1/recall", json={"query": "x", "filters": {"actors": ["nobody"]}}, headers=lines)
    assert [json.loads(line)["object"] for line in nothing.text.splitlines()] == ["end"]


@pytest.mark.parametrize(
    ("accept", "in_lines"),
    [
        ("application/x-ndjson", True),
        ("Application/X-NDJSON; q=0.9, */*; q=0.1", True),
        ("application/json, application/x-ndjson", True),
        ("application/json, application/x-ndjson; q=0.5", False),
        ("application/x-ndjson; q=0", False),
        ("application/x-ndjson; q=none", False),
        ("*/*", False),
        ("application/json", False),
        ("", False),
        (",;,", False),
    ],
)
async def test_lines_are_given_to_who_asks_for_them(client: Client, accept: str, in_lines: bool) -> None:  # noqa: FBT001
    answer = await client.post("/v1/recall", json={"query": "x"}, headers={"Accept": accept})
    assert answer.status_code == 200
    assert (answer.headers["content-type"] == "application/x-ndjson") is in_lines


async def test_a_participant_is_meant_by_its_actor_its_name_and_its_aliases(client: Client) -> None:
    people = [
        {"actor": "user-7", "name": "Caroline Doe", "aliases": ["Caro", "Linchen"]},
        {"actor": "user-8", "name": "Melanie", "aliases": ["Mel"]},
    ]
    conversation = await client.conversation(participants=people)
    actors = {"Caroline": "user-7", "Melanie": "user-8"}
    await client.append(conversation, *[{**turn, "actor": actors[turn["actor"]]} for turn in PETS])
    for name in ("Caroline", "caro", "Caro's", "Linchen"):
        query = f"What did {name} research?" if "'" not in name else f"What is {name} research?"
        best = (await client.recall(conversation, query, k=1, explain=True))[0]
        assert best["text"] == PETS[2]["content"], name
        assert best["explain"]["terms"]["speaker"] > 0, name
    # an alias of another gives the bonus to that one's turns
    for hit in await client.recall(conversation, "What did Mel adopt?", explain=True):
        assert (hit["explain"]["terms"]["speaker"] > 0) == (hit["turn"]["actor"] == "user-8")


async def test_aliases_are_taken_out_of_the_text_that_is_embedded(
    service: Service, client: Client, monkeypatch: Any
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    asked: list[str] = []
    embed = embedder.embed

    async def recording(texts: Any, *, purpose: Any) -> Any:
        asked.extend(texts)
        return await embed(texts, purpose=purpose)

    conversation = await client.conversation(
        participants=[{"actor": "user-7", "name": "Caroline", "aliases": ["Caro", "李雷"]}]
    )
    await client.append(conversation, "My dog is called Pepper.")
    monkeypatch.setattr(embedder, "embed", recording)
    for query in ("Which dog does Caro have?", "Which dog does Caroline have?", "Which dog does CARO have?"):
        await client.recall(conversation, query)
    await client.recall(conversation, "Caro")
    assert asked == [*["Which dog does have?"] * 3, "Caro"]
    for query in ("Caro's dog", "which dog does caro have?"):
        await client.recall(None, query)
    # without a capital letter inside, the whole text is embedded while the names are read, and then what is left of it
    assert asked[4:] == ["Caro's dog", "dog", "which dog does caro have?", "which dog does have?"]


async def test_so_many_names_are_looked_for_and_no_more(client: Client) -> None:
    """Those of the conversations that were active last; names are cut before their first word is looked for."""
    people = [{"actor": f"a{n}", "name": f"Parrot{n} {'x ' * 100}"} for n in range(200)]
    for number in range(6):
        mine = [one | {"actor": f"c{number}-{one['actor']}", "name": f"c{number}{one['name']}"} for one in people]
        conversation = await client.conversation(participants=mine)
        await client.append(conversation, {"role": "user", "actor": f"c{number}-a7", "content": "so be it"})
    newest, oldest = [
        await client.recall(None, f"what did c{number}parrot7 say", k=6, explain=True) for number in (5, 0)
    ]
    assert any(hit["explain"]["terms"]["speaker"] for hit in newest)
    assert not any(hit["explain"]["terms"]["speaker"] for hit in oldest)
