"""What explains an answer, in a real browser: tool calls while they are written, and memories in a context."""

import json

import pytest
from playwright.async_api import Browser, expect

from tests.support.api import Client
from tests.support.browser import needs_chromium
from tests.support.dashboard import signed_in

pytestmark = [needs_chromium, pytest.mark.slow]
ARGUMENTS = json.dumps({"city": "Lisbon", "nights": 6, "note": "naïve 🚋"}, ensure_ascii=False)


async def test_a_tool_call_grows_while_it_is_written_and_is_folded_after_the_commit(
    client: Client, port: int, browser: Browser
) -> None:
    conversation = await client.conversation(title="Lisbon")
    path = f"/v1/conversations/{conversation}/turns"
    opening = {"turn": {"role": "assistant", "actor": "planner"}, "writer": "test"}
    turn = (await client.post(f"{path}/open", json=opening)).json()["turn"]["id"]

    async def write(part: str, offset: int, delta: str) -> None:
        chunk = {"part": part, "offset": offset, "delta": delta}
        sent = await client.post(f"{path}/{turn}/chunks", json=chunk)
        assert sent.status_code == 200, sent.text

    async with signed_in(browser, port, client.key) as window:
        await window.open(f"/conversations/{conversation}")
        shown = window.page.locator(".turn", has_text="writing")
        await expect(shown).to_be_visible()
        await write("content", 0, "Let me look.")
        await write("tool_calls/0/id", 0, "call_1")
        await write("tool_calls/0/name", 0, "find_hotels")
        await write("tool_calls/0/arguments", 0, ARGUMENTS[:20])
        await expect(shown.locator("summary code")).to_have_text("find_hotels")
        await expect(shown.locator("details pre")).to_have_text(ARGUMENTS[:20])
        await window.page.reload()  # the snapshot has the parts so far
        await expect(shown.locator("details pre")).to_have_text(ARGUMENTS[:20])
        await write("tool_calls/0/arguments", 20, ARGUMENTS[20:])
        await write("tool_calls/1/name", 0, "find_flights")
        await expect(shown.locator("details pre").first).to_have_text(ARGUMENTS)
        await expect(shown.locator("summary code")).to_have_text(["find_hotels", "find_flights"])
        await write("tool_calls/1/id", 0, "call_2")
        await write("tool_calls/1/arguments", 0, "{}")
        ended = await client.post(f"{path}/{turn}/commit", json={})
        assert ended.status_code == 200, ended.text
        committed = window.page.locator(".turn")
        await expect(committed.locator("summary code")).to_have_text(["find_hotels", "find_flights"])
        await expect(committed.locator("details[open]")).to_have_count(0)
        await expect(committed.locator(".prose")).to_have_text("Let me look.")
        assert window.complaints == []
        assert window.unknown_calls() == []


async def test_the_inspector_shows_memories_and_facts_of_other_conversations_by_what_they_say(
    client: Client, operator: Client, port: int, browser: Browser
) -> None:
    other = await client.conversation(owner="mia")
    fact = {"subject": "mia", "predicate": "avoids", "object": "gluten", "owner": "mia", "conversation_id": other}
    assert (await client.post("/v1/facts", json=fact)).status_code == 201
    memory = {"content": "Mia cannot eat gluten at all.", "owner": "mia"}
    assert (await client.post("/v1/memories", json=memory, headers={"X-Agent-Id": "planner"})).status_code == 201
    conversation = await client.conversation(title="Lisbon", owner="mia")
    await client.append(conversation, {"role": "user", "actor": "mia", "content": "Which gluten should I avoid?"})
    async with signed_in(browser, port, operator.key) as window:
        page = window.page
        await window.open(f"/conversations/{conversation}/context")
        await expect(page.locator(".reasons")).to_contain_text("Mia cannot eat gluten at all.")
        await expect(page.locator(".reasons a", has_text="mia avoids gluten")).to_be_visible()
        await expect(page.locator(".legend").first).to_contain_text("Memories")
        await page.get_by_role("checkbox", name="Memories").uncheck()
        await expect(page.locator(".reasons")).not_to_contain_text("cannot eat gluten")
        await page.get_by_role("checkbox", name="Memories").check()
        await page.get_by_label("Agent of the memories").fill("somebody else")
        await expect(page.locator(".reasons")).not_to_contain_text("cannot eat gluten")
        assert window.complaints == []
        assert window.unknown_calls() == []
    # a key without the scope `admin` reads the memories of the agent that it names
    reading = {"name": "reader", "scopes": ["read"], "long_term_enabled": True}
    reader = (await operator.post("/v1/admin/keys", json=reading)).json()["key"]
    async with signed_in(browser, port, reader) as window:
        page = window.page
        await window.open(f"/conversations/{conversation}/context")
        await expect(page.locator(".reasons a", has_text="mia avoids gluten")).to_be_visible()
        await expect(page.locator(".reasons")).not_to_contain_text("cannot eat gluten")
        await page.get_by_role("checkbox", name="Memories").check()
        await page.get_by_label("Agent of the memories").fill("planner")
        await expect(page.locator(".reasons")).to_contain_text("Mia cannot eat gluten at all.")
        assert window.complaints == []


async def test_hits_are_rendered_and_have_only_the_parts_that_the_search_computes(
    client: Client, port: int, browser: Browser
) -> None:
    conversation = await client.conversation(title="Lisbon")
    short = "Take the **tram** `28`:\n\n# Early\n\n- <b>empty</b> then ![sight](https://example.org/tram.png)"
    long = "Another **tram**:\n\n| line | price |\n|---|---|\n| `12` | 3 € |\n\n" + "It goes *up the hill*. " * 30
    for content in (short, long):
        await client.append(conversation, {"role": "assistant", "actor": "planner", "content": content})
    async with signed_in(browser, port, client.key) as window:
        page = window.page
        await window.open("/recall?q=tram")
        rendered = page.locator(".hit", has_text="Take the")
        await expect(rendered.locator(".prose strong").first).to_have_text("tram")
        await expect(rendered.locator(".prose h1")).to_have_text("Early")
        await expect(rendered.locator(".prose li")).to_contain_text("<b>empty</b> then [Image (not loaded): sight")
        clipped = page.locator(".hit", has_text="Another tram").locator(".hit-long")
        excerpt = await clipped.locator("summary").inner_text()
        assert not set("*`#|") & set(excerpt), excerpt
        assert "Another tram: line price 12 3 € It goes up the hill." in excerpt
        await clipped.locator("summary").click()
        await expect(clipped.locator(".prose td").first).to_have_text("12")
        # a server without an embedder compares words only, in both of these modes
        for mode in ("hybrid", "text"):
            await page.get_by_label("Mode").select_option(mode)
            await expect(page.locator(".side-of-recall")).to_have_attribute("aria-busy", "false")
            assert {*await page.locator(".terms dt").all_inner_texts()} >= {"words"}
            await expect(page.locator(".side-of-recall")).not_to_contain_text("meaning")
            await expect(page.locator(".side-of-recall")).not_to_contain_text("no vector")
            for hit in await page.locator(".hit").all():
                parts = [
                    float(part.replace("\u2212", "-")) for part in await hit.locator(".terms .number").all_inner_texts()
                ]
                score = (await hit.get_by_title("Orders the hits.").inner_text()).removeprefix("score ")
                assert sum(parts) == pytest.approx(float(score), abs=0.003)
        assert window.complaints == []
    # on a narrow screen the parts would push each hit but the first out of view
    async with signed_in(browser, port, client.key, viewport={"width": 400, "height": 800}) as window:
        await window.open("/recall?q=tram")
        await expect(window.page.locator(".hit")).to_have_count(2)
        await expect(window.page.locator(".hit .terms:visible")).to_have_count(0)
        await window.page.get_by_text("Score:").first.click()
        await expect(window.page.locator(".hit .terms:visible")).to_have_count(1)
