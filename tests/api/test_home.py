"""The page at `/`, and paths that end with a slash."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from websockets.asyncio.client import connect

from tests.support.api import Client, Service, open_service, problem
from tests.support.browser import WAIT_MS, chromium, needs_chromium
from tests.support.live import serving
from tests.support.postgres import TestDatabase

ID = "01M7VTN47SR0T89E4W1SPQTA48"
LINK = re.compile(r'href="(/[^"]*)"')


@pytest.fixture
async def anybody(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key, whose answers need not be declared by the document."""
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
async def port(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    async with (
        open_service(database, Path(tmp_path_factory.mktemp("home")), embedder="none") as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield port


def requests(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path that has a route, with an id in the place of each parameter."""
    for context in iter_route_contexts(app.routes):
        path = re.sub(r"\{[^}]*\}", ID, str(context.path_format or context.path))
        for method in sorted(context.methods or ()):
            yield method, path


async def test_the_home_page_links_to_pages_that_are_there(anybody: httpx.AsyncClient) -> None:
    page = await anybody.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = set(LINK.findall(page.text))
    assert {"/dashboard/demo", "/docs", "/healthz", "/openapi.json", "/asyncapi.json", "/docs/errors"} <= links
    for link in links:
        assert (await anybody.get(link)).status_code == 200, link
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "script" not in policy + page.text
    head = await anybody.head("/")
    assert (head.status_code, head.headers["content-type"]) == (200, "text/html; charset=utf-8")


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("text/html", "text/html"),
        ("*/*", "text/html"),
        ("", "text/html"),
        ("TEXT/*;q=0.5", "text/html"),
        ("application/json, text/html", "text/html"),
        ("application/json", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("application/yaml", "application/json"),
    ],
)
async def test_clients_that_do_not_accept_html_get_the_home_page_as_json(
    anybody: httpx.AsyncClient, accept: str, media_type: str
) -> None:
    answer = await anybody.get("/", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["content-type"].partition(";")[0] == media_type
    if media_type == "application/json":
        assert answer.json()["name"] == "Turnkeep"
        for link in answer.json()["links"].values():
            assert (await anybody.get(link)).status_code == 200, link


@needs_chromium
@pytest.mark.slow
async def test_the_home_page_is_shown_by_a_browser_without_a_complaint(port: int) -> None:
    async with chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        await page.goto(f"http://127.0.0.1:{port}/")
        assert await page.locator("h1").inner_text() == "Turnkeep"
        styled = await page.locator("body").evaluate("body => getComputedStyle(body).display")
        assert styled == "flex"
        assert complaints == []


async def test_every_route_answers_alike_with_and_without_a_slash_at_the_end(
    service: Service, anybody: httpx.AsyncClient
) -> None:
    asked = list(requests(service.app))
    assert {("GET", "/openapi.json"), ("POST", "/mcp"), ("GET", f"/v1/conversations/{ID}/turns")} <= set(asked)
    for method, path in asked:
        if path in {"/", "/metrics"}:
            continue  # the one ends with it; the other's figures move with each request
        plain, slashed = [await anybody.request(method, f"{path}{end}") for end in ("", "/")]
        assert slashed.status_code == plain.status_code, (method, path)
        assert slashed.headers.get("content-type") == plain.headers.get("content-type"), (method, path)
        assert slashed.headers.get("cache-control") == plain.headers.get("cache-control"), (method, path)
        ids = [answer.headers["x-request-id"] for answer in (plain, slashed)]
        assert slashed.text.replace(ids[1], "") == plain.text.replace(ids[0], ""), (method, path)


async def test_a_slash_at_the_end_loses_no_body_and_no_query(client: Client) -> None:
    made = await client.post("/v1/conversations/", json={"title": "Trams"})
    assert made.status_code == 201
    path = f"/v1/conversations/{made.json()['id']}"
    turn = {"turns": [{"role": "user", "content": "Tram 28"}]}
    stored = await client.post(f"{path}/turns/", json=turn, headers={"Idempotency-Key": "one"})
    again = await client.post(f"{path}/turns", json=turn, headers={"Idempotency-Key": "one"})
    assert (stored.status_code, again.headers.get("idempotent-replayed")) == (201, "true")
    await client.append(made.json()["id"], "The hill")
    page = await client.get(f"{path}/turns/?limit=1&order=asc")
    assert [turn["content"] for turn in page.json()["data"]] == ["Tram 28"]
    problem(await client.get(f"{path}/turns/?limt=1"), 422, "invalid_request")
    problem(await client.delete(f"{path}/turns/"), 422, "invalid_request")
    assert (await client.delete(f"{path}/")).status_code == 204


@pytest.mark.parametrize("end", ["//", "%2F", "/%2F", "%2F/"])
async def test_only_one_slash_that_is_not_encoded_is_removed(client: Client, end: str) -> None:
    client.event_hooks = {}
    conversation = await client.conversation()
    for path in ("/v1/conversations", f"/v1/conversations/{conversation}", "/healthz", "/metrics"):
        for method in ("GET", "DELETE"):
            # an empty or encoded segment is an id that names nothing, never the list above it
            answer = await client.request(method, f"{path}{end}")
            assert answer.status_code in {404, 405, 422}, (method, path, answer.text)
    assert (await client.get(f"/v1/conversations/{conversation}")).status_code == 200


async def test_a_websocket_and_a_bare_request_take_a_slash_at_the_end(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    async with serving(service.app, service.settings) as port:
        headers = {"Authorization": client.headers["authorization"]}
        url = f"ws://127.0.0.1:{port}/v1/conversations/{conversation}/live/"
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            await socket.send('{"type": "subscribe"}')
            assert '"ack"' in str(await socket.recv())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as anybody:
            for path, status in (("/", 200), ("/healthz/", 200), ("//", 404), ("//healthz", 404), ("/v1//", 404)):
                request = anybody.build_request("GET", "/")
                request.extensions["target"] = path.encode()
                assert (await anybody.send(request)).status_code == status, path
