"""The demo page: its files and headers, and in a real browser an answer that survives reloads of both windows."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from tests.support.api import Client, Service, open_service
from tests.support.browser import Demo, chromium, needs_chromium
from tests.support.live import serving
from tests.support.postgres import TestDatabase

ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in (ROOT / "app/dashboard/demo").iterdir())


@pytest.fixture(scope="module")
async def port(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    async with (
        open_service(database, Path(tmp_path_factory.mktemp("demo")), embedder="none") as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield port


async def test_every_file_of_the_demo_is_served_without_a_key_and_runs_no_script_of_others(service: Service) -> None:
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as anybody:
        for name in ("", *FILES):
            public = {"index.html": "", "window.html": "/window"}.get(name, f"/{name}" if name else "")
            answer = await anybody.get(f"/dashboard/demo{public}")
            assert answer.status_code == 200, name
            assert "script-src 'self';" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            if answer.headers["content-type"].startswith("text/html"):
                assert "://" not in answer.text, "nothing is fetched from elsewhere"
                assert "<style" not in answer.text
        for name in ("nothing", "../pages.py", "pages.py", "%2e%2e%2fpages.py"):
            assert (await anybody.get(f"/dashboard/demo/{name}")).status_code == 404


@needs_chromium
@pytest.mark.slow
async def test_a_reload_in_mid_stream_shows_the_text_so_far_and_both_windows_end_with_what_is_kept(
    client: Client, port: int
) -> None:
    async with chromium() as browser:
        demo = Demo(await browser.new_page(), f"http://127.0.0.1:{port}")
        conversation = await demo.start(client.key)
        await demo.say("A week in Lisbon?")
        so_far = await demo.growing(demo.right, 60)
        await expect(demo.right.locator("#presence")).to_have_text("model is writing …")
        await demo.reload("right")
        later = await demo.growing(demo.right, len(so_far))
        assert later.startswith(so_far)
        await demo.reload("left")
        await demo.left.locator("#speed").select_option("fast")
        await demo.begins(demo.left, later)
        await demo.over()
        kept = [turn["content"] for turn in await client.history(conversation)]
        assert kept == ["A week in Lisbon?", await demo.script(0)]
        assert [await demo.shown(window) for window in demo.windows()] == [kept, kept]
        assert demo.complaints == []
        assert client.key not in demo.page.url + str(await demo.page.evaluate("JSON.stringify({...sessionStorage})"))
