"""Hostile and odd summaries of a model: none that the checks exclude is stored, and contexts leave no turn out.

A seed is a range of a conversation in one of eight languages, and one kind of odd summary, which the model writes again
and again. `TURNKEEP_PROPERTY_EXAMPLES=2000` is the long form.
"""

import os
import random
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from app.context.compaction.claims import Shown, SummarySource
from tests.properties.test_coverage_properties import BUDGETS, FORMATS, check
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.postgres import TestDatabase

sys.path.append(str(Path(__file__).parents[2] / "bench"))  # its modules are on the path of a script only

from languages import LANGUAGES, dialogue, read
from odd_summaries import KINDS, Case, Said, extract, odd, swapped_names

EXAMPLES: Final = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "12"))
PURE_EXAMPLES: Final = max(EXAMPLES, 200)
START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
WITHOUT_NAMES: Final = frozenset({"de"})
"""Languages in which no capital shows a name."""
NAMES: Final = frozenset({"invented names", "added name"})


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def modelled(
    words_database: TestDatabase, fake: FakeChat, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    """An app with a chat model, and without an embedder."""
    async with open_service(
        words_database, tmp_path_factory.mktemp("data"), embedder="none", llm_base_url=fake.url, llm_model=CHAT_MODEL,
        llm_max_retries=0, title_generation_enabled=False,
    ) as opened:  # fmt: skip
        yield opened


def range_of(code: str, chance: random.Random, turns: int) -> list[Said]:
    """A range of a conversation in a language."""
    spoken = dialogue(read(code), with_facts=True)
    start = chance.randrange(len(spoken) - turns)
    return [
        Said(turn.speaker, turn.text, START + timedelta(minutes=at))
        for at, turn in enumerate(spoken[start : start + turns])
    ]


def case_of(seed: int) -> tuple[random.Random, str, str, Case]:
    """The randomness, the kind, the language and the range of a seed."""
    chance = random.Random(seed)  # noqa: S311 - for repeatable tests
    kind = [*KINDS, "swapped names"][seed % (len(KINDS) + 1)]
    code, other = chance.sample(LANGUAGES, 2)
    turns = range_of(code, chance, chance.choice([20, 30, 60]))
    way, share = chance.choice(["first", "dense", "random"]), chance.choice([0.15, 0.25])
    good = extract(turns, way=way, share=share, chance=chance)
    return (
        chance,
        kind,
        code,
        Case(turns, good, extract(range_of(other, chance, 40), way="dense", share=0.2, chance=chance)),
    )


def text_of(kind: str, case: Case, chance: random.Random) -> str | None:
    return swapped_names(case, chance) if kind == "swapped names" else odd(kind, case, chance)


def is_excluded(kind: str, code: str) -> bool:
    """Whether the checks exclude a kind: swapped names are only marked, and names need capitals."""
    return kind != "swapped names" and not (kind in NAMES and code in WITHOUT_NAMES)


def test_no_odd_summary_of_a_range_is_accepted() -> None:
    accepted: list[tuple[int, str, str]] = []
    for seed in range(PURE_EXAMPLES):
        chance, kind, code, case = case_of(seed)
        text = text_of(kind, case, chance)
        shown = [Shown(turn.text, turn.actor, turn.occurred_at) for turn in case.turns]
        if text is not None and is_excluded(kind, code) and SummarySource(shown).refusal(text) is None:
            accepted.append((seed, kind, code))
    assert accepted == []


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(EXAMPLES))
async def test_an_odd_summary_stands_for_no_turn_and_contexts_leave_none_out(
    seed: int, modelled: Service, fake: FakeChat
) -> None:
    chance, kind, code, case = case_of(seed * 7 + 3)
    text = text_of(kind, case, chance)
    if text is None:
        return
    abstract = chance.choice([text, "", "…", case.good, " ".join(case.good.split()[:6]) or "…"])
    fake.reply = says({"summary": text, "abstract": abstract})
    await modelled.run_jobs()  # those that other tests of this database have left
    async with await modelled.new_tenant() as client:
        policy = {"strategy": chance.choice(["rolling", "hierarchical"]), "trigger_turns": chance.choice([6, 10])}
        conversation = await client.conversation(compaction=policy)
        for start in range(0, len(case.turns), 15):
            await client.append(
                conversation,
                *(
                    {
                        "role": "user",
                        "actor": turn.actor,
                        "content": turn.text,
                        "occurred_at": turn.occurred_at.isoformat(),
                    }
                    for turn in case.turns[start : start + 15]
                ),
            )
            asked = len(fake.chats)
            await modelled.run_jobs()
            assert len(fake.chats) - asked <= 8, "a refused summary costs one more request and its repair"
        assert (await client.get("/v1/admin/jobs")).json()["data"] == []
        listed = await client.get(f"/v1/conversations/{conversation}/summaries", params={"include_replaced": True})
        stored = listed.json()["data"]
        assert stored
        if is_excluded(kind, code):
            assert [one for one in stored if one["kind"] == "summary"] == [], (kind, code)
        for one in stored:
            assert one["abstract"] is None or len(one["abstract"]) <= len(one["text"])
        await check_contexts(chance, client, conversation)


async def check_contexts(chance: random.Random, client: Client, conversation: str) -> None:
    """Every turn is shown, lies under a summary of the context, or is counted in its gap."""
    turns = await client.history(conversation)
    summaries = (await client.get(f"/v1/conversations/{conversation}/summaries", params={"limit": 200})).json()["data"]
    for budget in chance.sample(BUDGETS, 3):
        body: dict[str, Any] = {"token_budget": budget, "format": chance.choice(FORMATS)}
        response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
        if response.status_code == 422:
            assert response.json()["minimum_budget"] > budget
            continue
        assert response.status_code == 200, response.text
        check(body, response.json(), turns, summaries)
