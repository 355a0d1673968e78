"""Odd and hostile answers of an extracting model, through the API: no fact is stored that its turn does not say.

Each example is a conversation of a few turns, with an answer to the search for personal data and one with facts, some
true and most of them not: other names, changed numbers, facts of other turns, prose, other languages, empty and very
long answers, tool calls as text. `TURNKEEP_PROPERTY_EXAMPLES=2000` is the long form.
"""

import json
import os
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.index.analyser.words import normalise
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.postgres import TestDatabase

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "60"))
TOWNS = ["Berlin", "Lisbon", "Osaka", "Quito", "Tromso", "Nairobi", "Zagreb", "Hanoi"]
THINGS = ["kettles", "harmonicas", "walnuts", "bicycles", "orchids", "lanterns", "saxophones", "parsnips"]
FOREIGN = ["一只绿色的龙", "дракон с Марса", "ein Drache vom Mars", "तीन घोड़े", "ثلاثة خيول"]
LONG = "and then they went home again " * 4_000
Turn = tuple[str, list[tuple[str, str]]]


class Choices(random.Random):
    """The choices of one example, which are the same in each run."""


@pytest.fixture(scope="module")
async def modelled(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, FakeChat]]:
    async with (
        open_fake_chat() as fake,
        open_service(
            words_database, tmp_path_factory.mktemp("data"), embedder="none", llm_base_url=fake.url,
            llm_model=CHAT_MODEL, llm_max_retries=0,
        ) as opened,
    ):  # fmt: skip
        yield opened, fake


def a_turn(chance: random.Random) -> Turn:
    """A text, and the facts that it says."""
    town, thing, count = chance.choice(TOWNS), chance.choice(THINGS), chance.randint(2, 99)
    return chance.choice(
        [
            (f"I live in {town} these days, with {count} {thing}.", [("lives_in", town), ("owns", f"{count} {thing}")]),
            (f"We went to {town} and I bought {thing}.", [("visited", town), ("bought", thing)]),
            (f"I love my {thing}!", [("likes", thing)]),
            ("Please order it. Thanks!", []),
            (f"我喜欢{town}，也喜欢绿茶。", [("likes", "绿茶"), ("likes", town)]),
        ]
    )


def a_false_fact(chance: random.Random, turns: list[Turn]) -> dict[str, Any]:
    number = chance.randint(-1, len(turns) + 2)
    inventions: list[Callable[[], tuple[str, str, str]]] = [
        lambda: ("I", "lives_in", chance.choice(TOWNS)),
        lambda: ("I", "owns", f"{chance.randint(2, 99)} {chance.choice(THINGS)}"),
        lambda: (chance.choice(["Melanie", "admin", "she", "the user's dog"]), "likes", chance.choice(THINGS)),
        lambda: ("I", "is", chance.choice(["a dragon from Mars", "vegetarian", "", "  ", "…", "yes", "the"])),
        lambda: ("I", "is", chance.choice(FOREIGN)),
        lambda: ("I", "is", json.dumps({"name": "recall_memory", "arguments": {"query": "hello"}})),
        lambda: ("I", "said", "I live in " * chance.randint(1, 60) + chance.choice(TOWNS)),
        lambda: ("I" * chance.choice([1, 300]), "is" * chance.choice([1, 90]), "x" * chance.choice([3, 400, 900])),
        lambda: ("I", "born_on", f"{chance.randint(1990, 2030)}-0{chance.randint(1, 9)}-1{chance.randint(0, 9)}"),
    ]
    subject, predicate, value = chance.choice(inventions)()
    return {
        "turn": number, "subject": subject, "predicate": predicate, "object": value,
        "confidence": chance.choice([1, 1, 1, 0.9, 0.2, -3]), "negated": chance.random() < 0.1,
        "hypothetical": chance.random() < 0.1, "valid_from": chance.choice([None, "2001-01-01", "2099-01-01", "soon"]),
    }  # fmt: skip


def true_facts(turns: list[Turn]) -> list[dict[str, Any]]:
    base = {"subject": "I", "confidence": 1, "negated": False, "hypothetical": False, "valid_from": None}
    return [
        base | {"turn": number, "predicate": predicate, "object": value}
        for number, (_, said) in enumerate(turns, start=1)
        for predicate, value in said
    ]


def an_answer(chance: random.Random, facts: list[dict[str, Any]]) -> Reply:
    whole = {"facts": facts}
    return chance.choice([
        *[says(whole)] * 8,
        says(f"Here you are:\n```json\n{json.dumps(whole)}\n```"),
        says({"facts": facts[:1] * 90}),
        says({"facts": []}), says({}), says(""), says("sadly"), says("sounds of joy " * 50), says(LONG),
        says({"facts": facts, "description": "What a model wrote.", "required": ["facts"]}),
        says({"name": "recall_memory", "arguments": {"query": "hello"}}),
        says(json.dumps(whole)[:-9], finish_reason="length"),
    ])  # fmt: skip


def some_personal(chance: random.Random, turns: list[Turn]) -> Reply:
    words = [word for text, _ in turns for word in text.split()]
    kinds = ["email", "phone", "card", "iban", "address", "birth_date", "plate", "ip_address", "national_id"]
    found = [
        {"text": chance.choice([*words, "in", "e", "I live in", " ", "x" * 900]), "kind": chance.choice(kinds)}
        for _ in range(chance.choice([0, 0, 1, 5, 300]))
    ]
    return chance.choice([*[says({"found": found})] * 6, says("nothing"), says({"found": "none"})])


def folded(text: str) -> list[str]:
    return re.findall(r"\d+|[^\W\d_]+", normalise(text))


def is_said(value: str, text: str) -> bool:
    """Whether a text has each number of a value, and each word, or a word with the same first four letters."""
    said = folded(text)
    return all(
        word in said
        or (not word.isdigit() and any(other[:4] == word[:4] for other in said if len(word) > 3))
        or (not word.isdigit() and word in normalise(text))
        for word in folded(value)
        if len(word) > 2 or not word.isascii() or word.isdigit()
    )


async def run_example(client: Client, fake: FakeChat, seed: int) -> tuple[int, int]:
    """Run one example; return the numbers of true facts that usable answers state, and of those stored."""
    chance = Choices(seed)
    turns = [a_turn(chance) for _ in range(chance.randint(1, 5))]
    true = true_facts(turns)
    facts = [*true, *(a_false_fact(chance, turns) for _ in range(chance.choice([1, 3, 9, 120])))]
    chance.shuffle(facts)
    answer, personal = an_answer(chance, facts), some_personal(chance, turns)

    def reply(request: dict[str, Any]) -> Reply:
        return personal if "personal data" in request["messages"][0]["content"] else answer

    fake.reply = reply
    owner = f"owner-{seed}"
    conversation = await client.conversation(owner=owner)
    stored = (await client.append(conversation, *[text for text, _ in turns]))["turns"]
    texts = {turn["id"]: text for turn, (text, _) in zip(stored, turns, strict=True)}
    done = await client.post(f"/v1/conversations/{conversation}/facts/extract", json={})
    assert done.status_code == 200, (seed, done.text)
    held = (await client.get("/v1/facts", params={"conversation_id": conversation, "limit": 200})).json()["data"]
    for fact in held:
        assert fact["subject"] in {owner, "we", "the"}, (seed, fact)
        assert fact["source_turn_ids"], (seed, fact)
        for turn_id in fact["source_turn_ids"]:
            assert is_said(fact["object"], texts[turn_id]), (seed, fact, texts[turn_id])
    is_plain = answer.text == json.dumps({"facts": facts}) and len(facts) <= 100
    # else the rules read the turns
    is_plain = is_plain and str(personal.text).startswith('{"found": [')
    objects = {fact["object"] for fact in held}
    if not is_plain:
        return 0, 0
    return len(true), sum(one["object"] in objects for one in true)


async def test_no_fact_is_stored_that_its_turn_does_not_say(modelled: tuple[Service, FakeChat]) -> None:
    service, fake = modelled
    stated = stored = 0
    async with await service.new_tenant() as client:
        for seed in range(EXAMPLES):
            counts = await run_example(client, fake, seed)
            stated, stored = stated + counts[0], stored + counts[1]
    assert stated > EXAMPLES / 4
    assert stored >= 0.95 * stated, f"{stored} of {stated} true facts are stored"
