"""The dashboard in Chromium over a large tenant: first load, first paint, frames while scrolling, steps of the budget.

    .venv/bin/python bench/dashboard.py --conversations 100000 --turns 20000

Starts a server on a database in a folder of its own, makes conversations by SQL and one long conversation by the API,
then opens the dashboard in the system's Chromium (headless, without a GPU). All times are the browser's own: paint and
resource timing, `requestAnimationFrame` while the mouse wheel turns, and for a step of the budget the time from the key
to the frame that shows the new figures.

Exits with 1 when a goal is missed: first load below 150 kB, median frame of each scroll below 100 ms, median step of
the budget below 50 ms. Wants `apt install chromium`.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import typer
from client import Client
from figures import percentile
from lists import CONVERSATIONS
from playwright.async_api import Browser, Page, async_playwright
from pydantic import BaseModel, JsonValue
from rich.console import Console
from rich.table import Table
from server import Server, serve

CHROMIUM: Final = Path("/usr/bin/chromium")
FIRST_LOAD_GOAL_BYTES: Final = 150_000
FRAME_GOAL_MS: Final = 100.0
STEP_GOAL_MS: Final = 50.0
WAIT_S: Final = 120.0
BATCH: Final = 500
LONG_TITLE: Final = "A year with one assistant"
WHEEL_PX: Final = 900
WHEEL_PAUSE_S: Final = 0.02
STEPS: Final = 40
STEP: Final = "step of the budget"
STEP_PAUSE_S: Final = 0.1
MEASURE: Final = """
  const measured = (window.measured = { frames: null, shown: {}, step: null, interactions: [] });
  // from a click or a key to the next paint, as the browser counts them: in steps of 8 ms, from 16 ms on
  new PerformanceObserver((list) => {
    const found = list.getEntries().filter(({ interactionId }) => interactionId);
    measured.interactions.push(...found.map(({ duration }) => duration));
  }).observe({ type: "event", durationThreshold: 16, buffered: true });
  const watched = { list: ".conversation-row", transcript: ".turn", context: ".budget-bar" };
  // times count from the start of the navigation, or from the last click
  let from = 0;
  addEventListener("click", (event) => { from = event.timeStamp; measured.shown = {}; }, true);
  const afterPaint = (done) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = done;
    channel.port2.postMessage(0);
  });
  const used = () => document.querySelector(".inspector .spread strong")?.textContent ?? "";
  new MutationObserver(() => {
    for (const [name, selector] of Object.entries(watched)) {
      if (measured.shown[name] !== undefined || !document.querySelector(selector)) continue;
      measured.shown[name] = null;
      afterPaint(() => { measured.shown[name] = performance.now() - from; });
    }
    const { step } = measured;
    if (step?.took === null && used() !== step.before) {
      step.before = used();
      afterPaint(() => { step.took = performance.now() - step.began; });
    }
  }).observe(document, { subtree: true, childList: true, characterData: true });
  const onKey = ({ timeStamp }) => { measured.step = { began: timeStamp, took: null, before: used() }; };
  addEventListener("keydown", onKey, true);
  measured.start = () => {
    const frames = (measured.frames = []);
    let last = null;
    const next = (now) => {
      if (measured.frames !== frames) return;
      if (last !== null) frames.push(now - last);
      last = now;
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  };
  measured.stop = () => { const { frames } = measured; measured.frames = null; return frames; };
"""
"""Run in each page before its own scripts."""
BYTES: Final = """() => JSON.stringify(performance.getEntries()
  .filter(({ entryType, name }) => entryType === "navigation" || name.includes("/dashboard/assets/"))
  .map(({ name, encodedBodySize }) => ({ name, encoded: encodedBodySize })))"""
"""The bodies of the page and its files as they were sent."""
PAINT: Final = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@dataclass(slots=True)
class Figures:
    """What was measured, in milliseconds, bytes and rows."""

    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    frames: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    first_load_bytes: int = 0
    first_load_files: int = 0

    def record(self, name: str, ms: float) -> None:
        """Count one."""
        self.times.setdefault(name, []).append(ms)

    def missed(self) -> list[str]:
        """Return the goals that were missed."""
        found = [f"{name}: median frame" for name, all_of in self.frames.items() if _median(all_of) >= FRAME_GOAL_MS]
        if self.first_load_bytes >= FIRST_LOAD_GOAL_BYTES:
            found.append("first load")
        if _median(self.times.get(STEP, [])) >= STEP_GOAL_MS:
            found.append(STEP)
        return found


class _Made(BaseModel):
    id: str


class _File(BaseModel):
    name: str
    encoded: int


class _Stats(BaseModel):
    vectors_pending: int


def _median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def turns_of(start: int, count: int) -> list[dict[str, JsonValue]]:
    """Return turns as a long chat has them: short and long, with lists, code and tables."""
    made: list[dict[str, JsonValue]] = []
    for number in range(start, start + count):
        plain = f"Turn {number}: " + "some words of a message of usual length, " * (1 + number % 7)
        match number % 10:
            case 3:
                content = f"{plain}\n\n| day | price |\n|---|---|\n| Monday | {number} € |\n| Friday | {number} € |"
            case 7:
                content = f"**Do this**, in order:\n\n1. {plain}\n2. `make test`\n\n```python\nprint({number})\n```"
            case _:
                content = plain
        role = "user" if number % 2 else "assistant"
        made.append({"role": role, "actor": "mia" if number % 2 else "planner", "content": content})
    return made


async def make_long_conversation(client: Client, turns: int) -> str:
    """Store the long conversation, its vectors by jobs; return its id when the index is complete."""
    body: dict[str, JsonValue] = {"title": LONG_TITLE, "owner": "mia"}
    conversation = _Made.model_validate_json((await client.demand("create", "/v1/conversations", body)).body).id
    for start in range(1, turns + 1, BATCH):
        batch: list[JsonValue] = [*turns_of(start, min(BATCH, turns + 1 - start))]
        path = f"/v1/conversations/{conversation}/turns"
        await client.demand("append", path, {"turns": batch, "index": "deferred"})
    async with asyncio.timeout(60 + turns / 10):
        while await _vectors_pending(client):  # noqa: ASYNC110 - jobs make them, in another process
            await asyncio.sleep(1)
    return conversation


async def _vectors_pending(client: Client) -> int:
    return _Stats.model_validate_json((await client.get("stats", "/v1/admin/stats")).body).vectors_pending


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """Open a browser that calls nobody by itself."""
    quiet = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    sandbox = [] if os.getuid() else ["--no-sandbox"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, *quiet])
        yield browser
        await browser.close()


async def shown(page: Page, name: str) -> float:
    """Return when something was painted first, in ms since the navigation or the last click."""
    return await _awaited(page, f"measured.shown.{name} ?? null")


async def _awaited(page: Page, expression: str) -> float:
    """Wait until an expression has a number. The policy of the page forbids what Playwright waits with."""
    async with asyncio.timeout(WAIT_S):
        while (found := await page.evaluate(expression)) is None:  # noqa: ASYNC110 - the page cannot call back
            await asyncio.sleep(0.02)
    return float(found)


async def load_first(browser: Browser, server: Server, figures: Figures) -> None:
    """Open the dashboard with an empty cache and sign in, as a new user does."""
    context = await browser.new_context(viewport={"width": 1600, "height": 1000})
    await context.add_init_script(MEASURE)
    page = await context.new_page()
    await page.goto(f"{server.url}/dashboard")
    await page.get_by_label("API key").fill(server.key)
    figures.record("first paint, empty cache", float(await page.evaluate(PAINT)))
    await page.get_by_role("button", name="Sign in").click()
    figures.record("list shown after the sign-in", await shown(page, "list"))
    files = [_File.model_validate(one) for one in json.loads(await page.evaluate(BYTES))]
    await record_interactions(page, figures)
    figures.first_load_files, figures.first_load_bytes = len(files), sum(one.encoded for one in files)
    await context.close()


async def signed_in(browser: Browser, server: Server) -> Page:
    """Return a tab that is signed in, whose cache has the files of the dashboard."""
    context = await browser.new_context(viewport={"width": 1600, "height": 1000})
    await context.add_init_script(MEASURE)
    page = await context.new_page()
    page.set_default_timeout(1000 * WAIT_S)
    await page.goto(f"{server.url}/dashboard")
    await page.get_by_label("API key").fill(server.key)
    await page.get_by_role("button", name="Sign in").click()
    await shown(page, "list")
    return page


async def reload(page: Page, url: str, name: str, watched: str, figures: Figures) -> None:
    """Open an address in a tab that is signed in already."""
    await page.goto("about:blank")
    await page.goto(url)
    figures.record(f"{name} shown", await shown(page, watched))
    figures.record(f"{name}: first paint", float(await page.evaluate(PAINT)))


async def scroll(page: Page, selector: str, *, rows: int, up: bool, name: str, figures: Figures) -> None:
    """Turn the mouse wheel until so many rows have passed; record the time of each frame, and the rows."""
    await page.locator(selector).hover()
    await page.evaluate("measured.start()")
    passed = 0
    async with asyncio.timeout(WAIT_S + rows / 50):
        while passed < rows:
            for _ in range(10):
                await page.mouse.wheel(0, -WHEEL_PX if up else WHEEL_PX)
                await asyncio.sleep(WHEEL_PAUSE_S)
            passed = await _passed(page, selector, up=up)
    figures.frames[name] = [float(one) for one in await page.evaluate("measured.stop()")]
    figures.rows[name] = passed


async def _passed(page: Page, selector: str, *, up: bool) -> int:
    """Rows that the scroll went over: by the place of a row in the list, or the position of a turn."""
    if up:
        position = await page.locator(f"{selector} .turn").first.get_attribute("data-position")
        newest = await page.locator(".timeline-place input").get_attribute("max")
        return int(newest or 0) - int(position or 0)
    return int(await page.locator(f"{selector} .virtual-row").last.get_attribute("data-index") or 0)


async def jump(page: Page, figures: Figures, position: int) -> None:
    """Go to a turn far away, by the slider of the timeline."""
    began = float(await page.evaluate("performance.now()"))
    slider = page.locator(".timeline-place input")
    await slider.fill(str(position))
    await page.locator(f".turn[data-position='{position}']").wait_for()
    figures.record("jump to a far turn", float(await page.evaluate("performance.now()")) - began)


async def step_budget(page: Page, url: str, figures: Figures) -> None:
    """Move the slider of the context inspector by keys, from 2 048 tokens to 11 585 and back."""
    await reload(page, url, "context inspector", "context", figures)
    await page.get_by_label("Token budget:").focus()
    for number in range(STEPS):
        await page.keyboard.press("ArrowRight" if number < STEPS // 2 else "ArrowLeft")
        figures.record(STEP, await _awaited(page, "measured.step.took"))
        await asyncio.sleep(STEP_PAUSE_S)


async def record_interactions(page: Page, figures: Figures) -> None:
    """Record what the browser measured in this document."""
    for duration in await page.evaluate("measured.interactions"):
        figures.record("interaction to next paint", float(duration))


async def measure(server: Server, conversation: str, *, rows: int, turns: int, rounds: int) -> Figures:
    """Open each of the large pages, and use it."""
    figures = Figures()
    async with chromium() as browser:
        for _ in range(rounds):
            await load_first(browser, server, figures)
        page = await signed_in(browser, server)
        for _ in range(rounds):
            await reload(page, f"{server.url}/dashboard", "list", "list", figures)
        await scroll(page, ".virtual", rows=rows, up=False, name="list", figures=figures)
        address = f"{server.url}/dashboard/conversations/{conversation}"
        for _ in range(rounds):
            await reload(page, address, "transcript", "transcript", figures)
        await scroll(page, ".virtual", rows=min(rows, turns // 2), up=True, name="transcript", figures=figures)
        for share in (0.1, 0.5, 0.8, 0.3):
            await jump(page, figures, round(turns * share))
        await record_interactions(page, figures)
        await step_budget(page, f"{address}/context", figures)
        await record_interactions(page, figures)
    return figures


def print_figures(console: Console, figures: Figures) -> None:
    """Print times, frames and bytes."""
    times = Table("ms", "median", "p95", "n")
    for name, values in figures.times.items():
        times.add_row(name, f"{_median(values):.0f}", f"{percentile(values, 0.95):.0f}", str(len(values)))
    console.print(times)
    frames = Table("scroll", "rows", "frames", "median ms", "p95 ms", "p99 ms", "longest ms", "rows a second")
    for name, values in figures.frames.items():
        shares = (f"{percentile(values, share):.1f}" for share in (0.5, 0.95, 0.99, 1.0))
        pace = 1000 * figures.rows[name] / max(1.0, sum(values))
        frames.add_row(name, str(figures.rows[name]), str(len(values)), *shares, f"{pace:.0f}")
    console.print(frames)
    console.print(f"first load: {figures.first_load_bytes / 1000:.1f} kB in {figures.first_load_files} files")


async def _main(conversations: int, turns: int, rows: int, rounds: int, embedder: str) -> int:
    console = Console()
    if not CHROMIUM.exists():
        console.print("Chromium is not installed: apt install chromium")
        return 2
    with tempfile.TemporaryDirectory(prefix="tk-dashboard-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        await asyncio.to_thread(root.chmod, 0o711)
        async with serve(root, embedder=embedder) as server, Client(server.url, server.key) as client:
            await client.demand("create", "/v1/conversations", {"external_id": "a pattern"})
            connection = await asyncpg.connect(server.postgres)
            await connection.execute("set statement_timeout = 0")
            await connection.execute(CONVERSATIONS, conversations, 4)
            await connection.execute("vacuum analyze")
            await connection.close()
            conversation = await make_long_conversation(client, turns)
            figures = await measure(server, conversation, rows=rows, turns=turns, rounds=rounds)
    print_figures(console, figures)
    missed = figures.missed()
    for name in missed:
        console.print(f"missed: {name}", style="red")
    return 1 if missed else 0


def main(
    conversations: Annotated[int, typer.Option(help="Conversations of the tenant.")] = 100_000,
    turns: Annotated[int, typer.Option(help="Turns of the long conversation.")] = 20_000,
    rows: Annotated[int, typer.Option(help="Rows that are scrolled over in each list.")] = 5_000,
    rounds: Annotated[int, typer.Option(help="How many times each page is opened.")] = 5,
    embedder: Annotated[str, typer.Option(help="Setting of the server; `none`: recall by words only.")] = "local",
) -> None:
    """Measure."""
    raise SystemExit(asyncio.run(_main(conversations, turns, rows, rounds, embedder)))


if __name__ == "__main__":
    typer.run(main)
