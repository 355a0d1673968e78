"""Summaries that a model writes are claims about the turns: what cannot be supported is refused, and never stored."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.conversations.schemas.summaries import RefusedFor
from tests.api.test_compaction import compact, summaries, talk
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.postgres import Servers, TestDatabase, own_database
from tests.support.timing import shorten_timeout

GOOD = says({"summary": "They paid Maria in Lisbon, again and again.", "abstract": "Payments to Maria."})
BAD = says({"summary": "sadly", "abstract": "sadly"})


@pytest.fixture
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = GOOD
        yield opened


@pytest.fixture(scope="module")
async def own(servers: Servers) -> AsyncIterator[TestDatabase]:
    """A database of these tests alone: the model would be asked for what other tests have left, too."""
    async with own_database(servers, "refused") as database:
        yield database


@pytest.fixture
async def modelled(own: TestDatabase, tmp_path: Path, fake: FakeChat) -> AsyncIterator[Service]:
    """An app with a model."""
    async with open_service(
        own,
        tmp_path,
        embedder="none",
        llm_base_url=fake.url,
        llm_model=CHAT_MODEL,
        llm_max_retries=0,
        title_generation_enabled=False,
    ) as opened:
        await opened.run_jobs()
        fake.chats.clear()
        yield opened


@pytest.fixture
async def user(modelled: Service) -> AsyncIterator[Client]:
    async with await modelled.new_tenant() as opened:
        yield opened


def turns_of(chat: dict[str, Any]) -> int:
    """The number of turns that a request shows."""
    return sum(line.startswith("[") and "earlier" not in line for line in chat["messages"][-1]["content"].split("\n"))


def sizes_of(fake: FakeChat) -> list[int]:
    """The numbers of turns of the different requests, without repairs."""
    contents = [chat["messages"][-1]["content"] for chat in fake.chats]
    sizes = [turns_of(chat) for chat, text in zip(fake.chats, contents, strict=True) if text.startswith("<transcript")]
    return list(dict.fromkeys(sizes))


async def waits(modelled: Service, user: Client) -> list[tuple[int, timedelta]]:
    """The attempts of highlights, and how long their model is not asked."""
    async with modelled.container.tenancy._ops.across_tenants() as tx:  # noqa: SLF001
        rows = await tx.fetch(
            "select attempts, retry_at from summaries where tenant_id = $1 and replaced_by is null", user.tenant_id
        )
    return [(row["attempts"], row["retry_at"] - datetime.now(UTC)) for row in rows]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sadly", "unrelated"),
        ("—", "blank"),
        ("   ", "model_invalid"),
        ("I paid euros to Maria. " * 40, "too_long"),
        ("euros to Maria " * 12, "repeated"),
        ('{"name": "recall_memory", "arguments": {"query": "Maria"}}', "not_text"),
        ("The committee postponed its vote on dredging permits until autumn.", "unrelated"),
        ("Zwei Fischer stritten lange über das Wetter in der Bucht.", "unrelated"),
        ("They paid 7500 euros to Maria in Lisbon.", "unsupported_number"),
        ("They paid euros to Maria in Lisbon on 3 May 1987.", "unsupported_number"),
        ("They paid Maria in Lisbon, then Xaverius and again Xaverius.", "unsupported_name"),
    ],
)
async def test_a_refused_summary_is_tried_with_half_of_the_turns_and_leaves_marked_highlights(
    user: Client, modelled: Service, fake: FakeChat, text: str, reason: str
) -> None:
    fake.reply = says({"summary": text, "abstract": text})
    conversation = await talk(user, 11)
    await modelled.run_jobs()
    (one,) = await summaries(user, conversation)
    assert (one["kind"], one["to_position"], one["refused_for"]) == ("highlights", 6, reason)
    assert one["model"] == (None if reason == "model_invalid" else CHAT_MODEL)
    assert sizes_of(fake) == [6, 3]
    assert (await user.get("/v1/admin/jobs")).json()["data"] == []
    asked = len(fake.chats)
    await modelled.container.compactor.refresh()
    await modelled.run_jobs()
    assert len(fake.chats) == asked
    assert (modelled.container.compactor.refused[RefusedFor(reason)] > 0, asked >= 2) == (True, True)


async def test_a_context_shows_highlights_in_place_of_a_refused_word(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    fake.reply = BAD
    conversation = await talk(user, 60, compaction={"trigger_turns": 10, "trigger_tokens": 100_000})
    await modelled.run_jobs()
    context = await user.context(conversation, 400)
    text = json.dumps(context["messages"])
    assert "sadly" not in text
    assert "highlights" in text
    listed = await summaries(user, conversation)
    covered = {at for one in listed for at in range(one["from_position"], one["to_position"] + 1)}
    shown = {
        turn["position"] for turn in await user.history(conversation) if turn["id"] in context["included"]["turn_ids"]
    }
    gap = context["gap"] or {"turns": 0}
    assert len(set(range(1, 61)) - covered - shown) == gap["turns"]


async def test_half_of_the_turns_is_stored_if_the_second_summary_passes(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    fake.replies = [BAD]
    conversation = await talk(user, 11)
    await modelled.run_jobs()
    (one,) = await summaries(user, conversation)
    assert (one["kind"], one["to_position"], one["refused_for"]) == ("summary", 3, None)
    assert [turns_of(chat) for chat in fake.chats] == [6, 3]
    assert [one["kind"] for one in await summaries(user, conversation, include_replaced=True)] == ["summary"]


@pytest.mark.parametrize("mode", ["timeout", "too_long", "html", "not the shape", "cut off"])
async def test_a_failure_that_fewer_turns_may_avoid_is_tried_once_more_with_fewer(
    user: Client, modelled: Service, fake: FakeChat, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    fake.reply = {
        "not the shape": says({"something": "else"}), "cut off": Reply('{"summary": "They', finish_reason="length")
    }.get(mode, Reply(mode=mode))  # fmt: skip
    if mode == "timeout":
        shorten_timeout(monkeypatch, modelled.container.chat)
    conversation = await talk(user, 11)
    await modelled.run_jobs()
    (one,) = await summaries(user, conversation)
    reason = {"timeout": "model_timeout", "too_long": "model_context_exceeded"}.get(mode, "model_invalid")
    assert (one["kind"], one["model"], one["refused_for"]) == ("highlights", None, reason)
    assert (await user.get("/v1/admin/jobs")).json()["data"] == []
    assert sizes_of(fake) == [6, 3]


async def test_the_refresh_asks_a_model_in_trouble_more_and_more_rarely(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    fake.reply = Reply(mode="no_model")
    conversation = await talk(user, 11)
    await modelled.run_jobs()
    hours: list[int] = []
    for attempt in range(7):
        ((attempts, wait),) = await waits(modelled, user)
        assert attempts == attempt
        hours.append(round(wait / timedelta(hours=1)))
        asked = len(fake.chats)
        await modelled.container.compactor.refresh()
        await modelled.run_jobs()
        assert len(fake.chats) == asked
        async with modelled.container.tenancy._ops.across_tenants() as tx:  # noqa: SLF001
            await tx.execute("update summaries set retry_at = now() where tenant_id = $1", user.tenant_id)
        await modelled.container.compactor.refresh()
        await modelled.run_jobs()
        assert len(fake.chats) == asked + 1
    assert hours == [1, 2, 4, 8, 16, 24, 24]
    fake.reply = GOOD
    (one,) = (await compact(user, conversation))["summaries"]  # a call does not wait
    assert (one["kind"], one["refused_for"]) == ("summary", None)


async def test_an_abstract_longer_than_its_summary_is_its_first_sentence(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    summary = "They paid Maria in Lisbon. Euros each time."
    for abstract in (f"{summary} {summary}", "…", "Xaverius and Xaverius paid."):
        fake.reply = says({"summary": summary, "abstract": abstract})
        conversation = await talk(user, 11)
        await modelled.run_jobs()
        (one,) = await summaries(user, conversation)
        assert (one["text"], one["abstract"]) == (summary, "They paid Maria in Lisbon.")


@pytest.mark.parametrize("by", ["setting", "policy"])
async def test_highlights_are_kept_by_wish_although_there_is_a_model(
    own: TestDatabase, tmp_path: Path, fake: FakeChat, by: str
) -> None:
    setting = "highlights" if by == "setting" else "model"
    async with (
        open_service(
            own, tmp_path, embedder="none", llm_base_url=fake.url, llm_model=CHAT_MODEL, summaries=setting
        ) as service,
        await service.new_tenant() as client,
    ):
        policy = {"summaries": "highlights"} if by == "policy" else {}
        conversation = await talk(client, 11, compaction=policy)
        dry_run = (await client.get(f"/v1/conversations/{conversation}/dry-run")).json()["compaction"]
        assert (dry_run["kind"], dry_run["cost"]) == ("highlights", None)
        await service.run_jobs()
        await service.container.compactor.refresh()
        await service.run_jobs()
        (one,) = await summaries(client, conversation)
        assert (one["kind"], one["model"], one["refused_for"]) == ("highlights", None, None)
        assert [chat for chat in fake.chats if "Maria" in str(chat["messages"])] == []
        body = {"compaction": {"summaries": "model"}}
        changed = await client.patch(f"/v1/conversations/{conversation}", json=body)
        assert changed.json()["compaction"]["summaries"] == "model"
        await service.container.compactor.refresh()
        await service.run_jobs()
        assert [one["kind"] for one in await summaries(client, conversation)] == ["summary"]


async def test_a_sentence_with_the_act_of_another_one_is_marked_also_in_the_next_summary_and_after_an_import(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    wrong = "Melanie went to a LGBTQ support group."
    talk_of_two = [
        {"role": "user", "actor": "caroline", "content": "I went to a LGBTQ support group yesterday, so powerful."},
        {"role": "user", "actor": "melanie", "content": "I painted a lake sunrise last year."},
    ]
    conversation = await user.conversation(compaction={"trigger_turns": 4, "trigger_tokens": 100_000})
    fake.reply = says({"summary": f"A lake sunrise 🌅 was painted. {wrong}", "abstract": "A sunrise."})
    for _ in range(2):
        await user.append(conversation, *talk_of_two, *talk_of_two, *talk_of_two)
        await modelled.run_jobs()
        (one,) = await summaries(user, conversation)
        assert one["kind"] == "summary"
        (doubtful,) = one["doubtful"]
        assert one["text"][doubtful["start"] : doubtful["end"]] == wrong
        assert doubtful["reason"] == "said_by_another"
    counted = (await user.get("/v1/admin/stats")).json()["summaries"]
    assert counted == [{"kind": "summary", "refused_for": None, "count": 1, "doubtful": 1}]


async def test_refused_summaries_are_counted_in_metrics_and_statistics(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    fake.reply = says({"summary": "The committee postponed its vote on dredging permits.", "abstract": "A vote."})
    await talk(user, 11)
    await modelled.run_jobs()
    counted = (await user.get("/v1/admin/stats")).json()["summaries"]
    assert counted == [{"kind": "highlights", "refused_for": "unrelated", "count": 1, "doubtful": 0}]
    metrics = (await user.get("/metrics")).text
    assert 'turnkeep_summaries_refused_total{reason="unrelated"} 2.0' in metrics
