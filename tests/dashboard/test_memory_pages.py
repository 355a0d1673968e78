"""The dashboard's pages about what is remembered, in a real browser: recall, facts, a person, a conversation."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from bench.locomo import read_dialogues
from tests.support.api import Client, open_service
from tests.support.browser import needs_chromium
from tests.support.dashboard import Dashboard, signed_in
from tests.support.live import serving
from tests.support.postgres import TestDatabase

pytestmark = [needs_chromium, pytest.mark.slow]
OWNER = "ana <b>/../?&#%é"


@pytest.fixture(scope="module")
async def port(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    folder = Path(tmp_path_factory.mktemp("memory_pages"))
    async with (
        open_service(database, folder, embedder="none", worker_in_process=True) as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield port


def as_promised(dashboard: Dashboard) -> None:
    """Fail on a complaint of the browser, a call outside of the document, or a person's name in an address."""
    assert dashboard.unexpected() == []
    assert dashboard.calls
    assert dashboard.unknown_calls() == []
    assert dashboard.calls_that_name("ana <b>") == []


def turn(dashboard: Dashboard, words: str) -> Locator:
    return dashboard.page.locator(".turn", has=dashboard.page.locator(".turn-body", has_text=words))


async def test_marked_hits_give_recall_figures_and_a_file_that_a_replay_reads(
    client: Client, port: int, tmp_path: Path, browser: Browser
) -> None:
    conversation = await client.conversation(owner=OWNER)
    said = [
        {"role": role, "actor": actor, "content": content, "occurred_at": f"2026-03-0{when}:00Z"}
        for role, actor, content, when in (
            ("user", "ana", "I moved to Lisbon in spring.", "1T13:56"),
            ("assistant", "bot", "How do you like it?", "1T13:57"),
            ("user", "ana", "The trams of Lisbon are loud.", "2T00:05"),
        )
    ]
    stored = await client.append(conversation, *said)
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        await dashboard.open("/recall")
        await page.get_by_label("Query").fill("trams of Lisbon")
        await page.get_by_label("Search in").select_option("owner")
        await page.get_by_label("Owner").fill(OWNER)
        await page.get_by_role("button", name="Search", exact=True).click()
        await expect(page.locator(".hit").first).to_contain_text("The trams of Lisbon are loud.")
        await expect(page.locator(".hit .terms .bar").first).to_be_attached()
        await page.get_by_role("button", name="Right: hit 2").click()
        await page.get_by_role("button", name="Wrong: hit 1").click()
        await expect(page.locator(".figures")).to_contain_text("R@1 0 %")
        await expect(page.locator(".figures")).to_contain_text("R@5 100 %")
        await page.get_by_label("Compare two configurations").check()
        await expect(page.locator(".side-of-recall")).to_have_count(2)
        await page.reload()
        await page.locator(".evaluation summary").click()
        await expect(page.locator(".marked")).to_contain_text("trams of Lisbon")
        await page.get_by_role("button", name="Ask all queries again").click()
        await page.locator(".marked button").first.click()
        await expect(page.locator(".figures")).to_contain_text("R@25 100 %")
        await expect(page.locator(".hit.right")).to_contain_text("I moved to Lisbon")
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export for a replay").click()
        await (await download.value).save_as(tmp_path / "marks.json")
        await page.locator(".hit.right a", has_text="Turn 1 in its conversation").click()
        await expect(page.locator(".turn.target")).to_contain_text("I moved to Lisbon")
        as_promised(dashboard)
    (dialogue,) = read_dialogues(tmp_path / "marks.json")
    assert [(one.actor, one.text) for one in dialogue.turns] == [(one["actor"], one["content"]) for one in said]
    assert [one.key for one in dialogue.turns] == ["D1:1", "D1:2", "D2:1"]
    assert [f"{one.occurred_at:%Y-%m-%dT%H:%M}" for one in dialogue.turns] == [
        "2026-03-01T13:56",
        "2026-03-01T13:56",
        "2026-03-02T00:05",
    ]
    (question,) = dialogue.questions
    assert (question.text, question.evidence) == ("trams of Lisbon", ("D1:1",))
    assert dialogue.name == conversation == stored["conversation_id"]


async def test_a_fact_is_corrected_retracted_and_undone_beside_its_evidence(
    client: Client, port: int, browser: Browser
) -> None:
    conversation = await client.conversation(owner=OWNER)
    stored = await client.append(conversation, "I live in Berlin.")
    body = {"owner": OWNER, "subject": "ana", "predicate": "lives in", "valid_from": "2026-01-05T00:00:00Z"}
    sources = {"conversation_id": conversation, "source_turn_ids": [stored["turns"][0]["id"]]}
    made = await client.post("/v1/facts", json=body | sources | {"object": "Berlin"})
    assert made.status_code == 201
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        await dashboard.open("/facts")
        await page.get_by_label("Owner").fill(OWNER)
        await page.locator(".fact-row").click()
        await expect(page.locator(".quote")).to_have_text("I live in Berlin.")
        await page.get_by_role("button", name="Correct").click()
        await page.get_by_label("ana lives_in …").fill("Porto")
        await page.locator("dialog").get_by_role("button", name="Correct").click()
        await expect(page.locator(".fact-head h2")).to_have_text("ana lives in Porto")
        await expect(page.locator(".fact-time.retracted")).to_contain_text("Berlin")
        await expect(page.locator(".truths")).to_contain_text("Porto")
        await page.get_by_label("As of:").fill(await page.get_by_label("As of:").get_attribute("min") or "")
        await page.get_by_label("As of:").press("ArrowLeft")
        await page.locator(".fact-head").get_by_role("button", name="Retract").click()
        await page.locator("dialog").get_by_role("button", name="Retract").click()
        await expect(page.locator(".fact-head .badge.bad")).to_have_text("retracted")
        await page.locator(".toast", has_text="Retracted").get_by_role("button", name="Undo").click()
        await expect(page.locator(".fact-head .badge.good")).to_have_text("true now")
        await page.get_by_role("link", name="Turn 1 in its conversation").click()
        await expect(page.locator(".turn.target .turn-facts")).to_contain_text("ana lives in Porto")
        as_promised(dashboard)
    facts = (await client.post("/v1/facts/search", json={"owner": OWNER})).json()["data"]
    assert [one["object"] for one in facts] == ["Porto"]


async def test_a_person_is_hidden_and_erased_with_a_receipt(client: Client, port: int, browser: Browser) -> None:
    conversations = [await client.conversation(owner=OWNER, title=f"Number {number}") for number in range(3)]
    await client.append(conversations[0], "I live in Berlin.")
    await client.post("/v1/memories", json={"content": "Ana likes trams.", "owner": OWNER})
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        await dashboard.open("/person")
        await page.get_by_label("Owner").fill(OWNER)
        await page.get_by_role("button", name="Look up").click()
        await expect(page.locator(".card .muted").first).to_have_text("Conversations: 3. Facts: 0. Memories: 1.")
        await page.get_by_role("button", name="Hide conversations").click()
        await page.get_by_label("To confirm, type:").fill(OWNER)
        await page.locator("dialog").get_by_role("button", name="Hide conversations").click()
        await expect(page.locator(".person-list .badge.warn")).to_have_count(3)
        assert (await client.get("/v1/conversations")).json()["data"] == []
        await page.locator(".toast").get_by_role("button", name="Undo").click()
        await expect(page.locator(".person-list .badge.warn")).to_have_count(0)
        await page.get_by_role("button", name="Erase", exact=True).click()
        confirm = page.locator("dialog").get_by_role("button", name="Erase")
        await page.get_by_label("To confirm, type:").fill("ana")
        await expect(confirm).to_be_disabled()
        await page.get_by_label("To confirm, type:").fill(OWNER)
        await confirm.click()
        await expect(page.locator(".receipt .badge").first).to_have_text("complete")
        await page.get_by_role("button", name="Verify the receipt").click()
        await expect(page.locator(".receipt .badge.good").last).to_contain_text("signed the receipt")
        as_promised(dashboard)
    seen = (await client.post("/v1/owners/lookup", json={"owner": OWNER})).json()
    assert [seen[kind]["count"] for kind in ("conversations", "facts", "memories")] == [0, 0, 0]


async def test_a_conversation_is_revised_forked_exported_hidden_and_erased(
    client: Client, port: int, tmp_path: Path, browser: Browser
) -> None:
    conversation = await client.conversation(title="A week in Lisbon")
    await client.append(conversation, "First words", "Second words", "Third words")
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        await dashboard.open(f"/conversations/{conversation}")
        await page.get_by_role("button", name="Revise turn 2").click()
        await page.get_by_label("Content").fill("Better words")
        await page.get_by_label("Also remove all later turns").check()
        await page.locator("dialog").get_by_role("button", name="Revise").click()
        await expect(page.locator(".turn")).to_have_count(2)
        await turn(dashboard, "Better words").locator("summary", has_text="2 earlier versions").click()
        await expect(turn(dashboard, "Better words").locator(".old-version")).to_have_count(2)
        await expect(turn(dashboard, "Better words")).to_contain_text("turn 3, removed by the revision")
        await page.get_by_role("button", name="Fork turn 1").click()
        await page.locator("dialog").get_by_role("button", name="Fork").click()
        await expect(page.locator("h1")).to_have_text("A week in Lisbon (fork)")
        await expect(page.locator(".turn")).to_have_count(1)
        await page.go_back()
        await page.get_by_role("button", name="Erase turn 1").click()
        await page.get_by_label("To confirm, type:").fill("turn 1")
        await page.locator("dialog").get_by_role("button", name="Erase").click()
        await expect(page.locator(".notice.good")).to_contain_text("Turn 1 was erased.")
        await expect(page.locator(".turn").first).to_contain_text("was erased")
        await page.locator(".menu summary").click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export").click()
        await (await download.value).save_as(tmp_path / "export.jsonl")
        await page.locator(".menu summary").click()
        await page.get_by_role("button", name="Pin").click()
        await expect(page.locator(".page-head .badge.accent")).to_have_text("Pinned")
        await page.locator(".menu summary").click()
        await page.get_by_role("button", name="Move to the trash").click()
        await expect(page.locator("h1")).to_have_text("Conversations")
        await page.locator(".toast", has_text="In the trash").get_by_role("button", name="Undo").click()
        await page.locator(".menu summary").click()
        await page.get_by_role("button", name="Erase with a receipt").click()
        await page.get_by_label("To confirm, type:").fill("A week in Lisbon")
        await page.locator("dialog").get_by_role("button", name="Erase").click()
        await expect(page.locator(".receipt .badge").first).to_have_text("complete")
        as_promised(dashboard)
    lines = [json.loads(line) for line in (tmp_path / "export.jsonl").read_text().splitlines()]
    assert (lines[0]["type"], lines[-1]["type"]) == ("header", "trailer")
    assert (await client.get(f"/v1/conversations/{conversation}")).status_code == 404
    listed = (await client.get("/v1/conversations")).json()["data"]
    assert [one["title"] for one in listed] == ["A week in Lisbon (fork)"]


async def test_a_link_opens_a_turn_in_the_middle_of_a_long_conversation(
    client: Client, port: int, browser: Browser
) -> None:
    conversation = await client.conversation()
    for start in range(0, 1500, 500):
        await client.append(conversation, *(f"Words number {number}" for number in range(start, start + 500)))
    middle = (await client.get(f"/v1/conversations/{conversation}/turns?after=699&limit=1")).json()["data"][0]
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        await dashboard.open(f"/conversations/{conversation}?turn={middle['id']}")
        await expect(page.locator(".turn.target")).to_contain_text("Words number 699")
        await expect(page.locator(".turn.target")).to_be_in_viewport()
        await page.get_by_label("Go to a turn").fill("1200")
        await expect(page.locator(".turn.target")).to_contain_text("Words number 1199")
        await page.get_by_role("button", name="Go to the newest turns").click()
        await expect(page.locator(".turn", has_text="Words number 1499")).to_be_in_viewport()
        as_promised(dashboard)


# Each step of the slider until its answer is shown, less the time of the call itself.
async def test_each_step_of_the_budget_slider_shows_its_context(client: Client, port: int, browser: Browser) -> None:
    conversation = await client.conversation(compaction={"strategy": "never"})
    await client.append(conversation, *(f"Words number {number} about trams and hills" for number in range(300)))
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        await dashboard.open(f"/conversations/{conversation}/context")
        used, slider = page.locator(".inspector .spread strong"), page.get_by_label("Token budget:")
        for quarters in range(28, 45):
            await slider.fill(str(quarters / 4))
            await expect(used).to_contain_text(f"of {round(2 ** (quarters / 4)):,} tokens")
        strip = page.get_by_role("img", name="turns shown verbatim")
        await expect(strip).to_be_visible()
        await slider.fill("17")
        await expect(strip).to_have_attribute("aria-label", "300 turns shown verbatim, 0 summarised, 0 left out.")
        as_promised(dashboard)


async def test_the_next_step_of_the_budget_slider_is_there_before_it_is_wanted(
    client: Client, port: int, browser: Browser
) -> None:
    conversation = await client.conversation(compaction={"strategy": "never"})
    await client.append(conversation, *(f"Words number {number} about trams and hills" for number in range(300)))
    async with signed_in(browser, port, client.key) as dashboard:
        page = dashboard.page
        answered: list[int] = []
        page.on("requestfinished", lambda request: answered.append(1) if request.url.endswith("/context") else None)
        await dashboard.open(f"/conversations/{conversation}/context")
        used = page.locator(".inspector .spread strong")
        await expect(used).to_contain_text("of 2,048 tokens")
        await page.get_by_label("Token budget:").focus()
        while len(answered) < 3:  # noqa: ASYNC110 - what is asked ahead changes nothing on the page
            await asyncio.sleep(0.05)
        await page.route("**/context", lambda route: route.abort())
        for key, budget in (("ArrowRight", "2,233"), ("ArrowLeft", "2,048"), ("ArrowLeft", "1,878")):
            await page.keyboard.press(key)
            await expect(used).to_contain_text(f"of {budget} tokens")
        await expect(page.get_by_role("alert")).to_have_count(0)
        await page.keyboard.press("ArrowLeft")
        await expect(page.get_by_role("alert")).to_be_visible()
