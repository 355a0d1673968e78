"""Relevance: exact matches have much, unrelated texts little, in scopes of any size and kind; what it decides."""

from typing import Any

import pytest

from app.recall.schemas import RELEVANCE_FLOOR
from tests.support.api import Client

# one sentence each, and a question about nothing in them
SENTENCES = [
    "My violin teacher is called Ludmila Baranova.",
    "The lighthouse keeper hides the spare key under the third flowerpot.",
    "We adopted a three-legged tortoise in Valparaíso.",
    "Our server room floods whenever the laundry machine leaks.",
    "The recipe needs cardamom, not cinnamon.",
    "Grandpa drove a yellow tractor to his wedding.",
    "The museum of umbrellas opens only on rainy days.",
    "Her thesis is about the migration of eels.",
    "The neighbours practise bagpipes before breakfast.",
    "This printer refuses to print the letter q.",
    "The chess club meets in the old bakery.",
    "He repairs accordions with parts of bicycles.",
    "The ferry to the island leaves from pier nine.",
    "My passport expires in November.",
    "The orchard has forty plum trees and one pear tree.",
    "They painted the submarine orange for the parade.",
    "A swarm of bees settled in the post box.",
    "The dentist collects meteorites.",
    "Our telescope was made from a drainpipe.",
    "The tailor sews costumes for circus horses.",
]
UNRELATED = "Which quarterly tax form must freelancers submit?"


async def fill(client: Client, kind: str, count: int) -> str | None:
    """Store the first sentences as entries of a kind; return their conversation, if they have one."""
    if kind == "memory":
        for sentence in SENTENCES[:count]:
            assert (await client.post("/v1/memories", json={"content": sentence})).is_success
        return None
    conversation = await client.conversation()
    if kind == "turn":
        await client.append(conversation, *SENTENCES[:count])
    else:
        for number, sentence in enumerate(SENTENCES[:count]):
            fact = {"subject": f"ann{number}", "predicate": "said", "object": sentence}
            answer = await client.post("/v1/facts", json=fact | {"conversation_id": conversation})
            assert answer.is_success, answer.text
    return conversation


@pytest.mark.parametrize("mode", ["hybrid", "text"])
@pytest.mark.parametrize("count", [1, 4, 20])
@pytest.mark.parametrize("kind", ["turn", "fact", "memory"])
async def test_an_exact_match_is_relevant_and_unrelated_text_is_not(
    client: Client, kind: str, count: int, mode: str
) -> None:
    conversation = await fill(client, kind, count)
    options: dict[str, Any] = {"kinds": [kind], "mode": mode, "k": 20}
    if kind == "memory":
        options["agent_id"] = "default"
    [best, *others] = await client.recall(conversation, SENTENCES[0], **options)
    assert SENTENCES[0] in best["text"]
    assert best["relevance"] >= 0.5
    if mode == "hybrid":
        assert len(others) == count - 1
    if kind != "turn":  # a turn shares in the match of the turns next to it
        assert all(hit["relevance"] < RELEVANCE_FLOOR for hit in others), others
    for hit in await client.recall(conversation, UNRELATED, **options):
        assert hit["relevance"] < RELEVANCE_FLOOR, hit["text"]


async def test_hits_below_a_relevance_are_left_out(client: Client) -> None:
    conversation = await fill(client, "turn", 20)
    query = "Who teaches me the violin?"
    assert len(await client.recall(conversation, query, k=20)) == 20
    [hit] = await client.recall(conversation, query, k=20, min_relevance=0.3)
    assert hit["text"] == SENTENCES[0]
    assert await client.recall(conversation, UNRELATED, k=20, min_relevance=RELEVANCE_FLOOR) == []
    await fill(client, "memory", 20)
    body = {"query": query, "top_k": 20, "min_relevance": 0.3}
    [entry] = (await client.post("/v1/memories/search", json=body)).json()["entries"]
    assert entry["content"] == SENTENCES[0]
    assert entry["relevance"] >= 0.3
    context = {"recent_turns": 1, "query": UNRELATED}
    shown = await client.context(conversation, 4000, semantic_recall={"k": 5, "min_relevance": 0.2}, **context)
    assert len(shown["included"]["turn_ids"]) < 5
    refused = await client.post("/v1/recall", json={"query": "x", "min_relevance": 2})
    assert refused.status_code == 422


async def test_the_answer_comes_before_the_same_question_asked_earlier(client: Client) -> None:
    conversation = await client.conversation()
    question = "Who is my violin teacher?"
    await client.append(
        conversation,
        question,
        {"role": "assistant", "content": "You have not told me yet."},
        "Let us talk about something else first.",
        "By the way: my violin teacher is Ludmila.",
    )
    [first, *_] = await client.recall(conversation, question)
    assert "Ludmila" in first["text"]


@pytest.mark.slow
async def test_a_word_that_occurs_once_in_a_long_turn_is_found_first(client: Client) -> None:
    conversation = await client.conversation()
    filler = " ".join(f"The committee discussed item {number} of the agenda at length." for number in range(1100))
    half = len(filler) // 2
    for start in range(0, 1000, 250):
        await client.append(conversation, *[f"Remark {start + n} about the weather." for n in range(250)])
    long = f"{filler[:half]} The vault code of the lighthouse is heliotrope. {filler[half:]}"
    await client.append(conversation, long, *[f"A boat of the harbour, number {n}." for n in range(20)])
    for query in ("heliotrope", "vault code of the lighthouse"):
        [hit] = await client.recall(conversation, query, k=1)
        assert "heliotrope" in hit["text"], query
