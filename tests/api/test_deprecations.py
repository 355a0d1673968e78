"""Deprecated routes say so in headers and in the OpenAPI document, and the page of the policy lists everything."""

from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from app.core import deprecations
from app.core.deprecations import DEPRECATIONS, Deprecation
from tests.support.api import Client, Service

PAGE = (Path(__file__).parents[2] / "docs/guides/deprecations.md").read_text()
PLANTED = Deprecation(
    "`GET /v1/conversations/{conversation_id}`", "another", date(2026, 11, 25), date(2027, 5, 25),
    route=("GET", "/v1/conversations/{conversation_id}"), successor="/v2/conversations",
)  # fmt: skip


async def test_a_deprecated_route_has_the_headers_in_every_answer_and_no_other_route_has_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deprecations, "DEPRECATIONS", (PLANTED,))
    conversation = await client.conversation()
    found = await client.get(f"/v1/conversations/{conversation}")
    missing = await client.get("/v1/conversations/01M884000000000000000000ZZ")
    assert (found.status_code, missing.status_code) == (200, 404)
    for answer in (found, missing):
        assert datetime.fromtimestamp(int(answer.headers["Deprecation"].removeprefix("@")), UTC).date() == PLANTED.since
        assert parsedate_to_datetime(answer.headers["Sunset"]).date() == PLANTED.sunset
        assert answer.headers["Link"] == '</v2/conversations>; rel="successor-version"'
    others = [
        await client.get("/v1/conversations"),
        await client.patch(f"/v1/conversations/{conversation}", json={"title": "x"}),
        await client.get("/healthz"),
    ]
    assert all({"Deprecation", "Sunset"}.isdisjoint(answer.headers) for answer in others)


async def test_the_table_and_the_openapi_document_name_the_same_routes(service: Service) -> None:
    document = service.app.openapi()
    marked = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation.get("deprecated")
    }
    assert marked == {one.route for one in DEPRECATIONS if one.route is not None}


def test_the_page_lists_each_with_its_days_and_leaves_at_least_half_a_year() -> None:
    for one in DEPRECATIONS:
        assert f"| {one.name} | {one.instead} | {one.since} | {one.sunset} |" in PAGE
        assert (one.sunset - one.since).days >= 180
    listed = [line for line in PAGE.partition("## Deprecated now")[2].splitlines() if line.startswith("| `")]
    assert len(listed) == len(DEPRECATIONS)
    assert ("No route is deprecated." in PAGE) is all(one.route is None for one in DEPRECATIONS)
