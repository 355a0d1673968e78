"""Every page of the dashboard in a real browser: axe finds nothing serious, in both schemes and at two widths."""

import json
from typing import Any

import pytest
from playwright.async_api import Browser

from app.core.ids import format_id
from tests.support.api import Client, Service
from tests.support.browser import needs_chromium
from tests.support.dashboard import PATHS, Dashboard, dashboard_in, needs_axe

pytestmark = [needs_chromium, needs_axe, pytest.mark.slow]
WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
NARROW: dict[str, Any] = {"viewport": {"width": 400, "height": 800}}


async def filled(operator: Client, service: Service) -> dict[str, str]:
    """Something for each page to show; the ids by the path that needs one."""
    conversation = await operator.conversation(title="A week in Lisbon", owner="mia")
    turns = [
        {"role": "user", "actor": "mia", "content": "We want a week in **Lisbon**: [see](https://example.org)."},
        {"role": "assistant", "actor": "planner", "content": "| city | price |\n|---|---|\n| Lisbon | 184 |"},
    ]
    await operator.append(conversation, *turns)
    hook = await operator.post("/v1/webhooks", json={"url": "https://example.com/hook", "description": "Shop"})
    assert hook.status_code == 201, hook.text
    await operator.post(f"/v1/webhooks/{hook.json()['id']}/test")
    await operator.post("/v1/admin/keys", json={"name": "shop", "owners": ["mia"]})
    await operator.post("/v1/erasures", json={"owner": "nobody"})
    fact = {"subject": "mia", "predicate": "lives_in", "object": "Bremen", "owner": "mia"}
    await operator.post("/v1/facts", json=fact)
    service.app.state.turnkeep.monitor.sample()
    return {"conversations": conversation, "webhooks": hook.json()["id"]}


def path_of(path: str, ids: dict[str, str]) -> str:
    kind = path.split("/")[2] if "/:id" in path else ""
    return path.replace(":id", ids.get(kind, ""))


async def look(browser: Browser, port: int, key: str, ids: dict[str, str], **options: Any) -> dict[str, list[str]]:
    window = await dashboard_in(browser, port, **options)
    await window.page.goto(f"{window.root}/dashboard")
    found = {"sign in": await window.violations()}
    await window.sign_in(key)
    for path in PATHS:
        await window.visit(path_of(path, ids))
        found[path] = await window.violations()
        if options["viewport"]["width"] < 500:
            assert await is_inside(window), f"{path} is wider than the window"
    if options["viewport"]["width"] < 500:
        await window.page.get_by_role("button", name="Menu").click()
        found["menu"] = await window.violations()
    return {path: problems for path, problems in found.items() if problems}


async def is_inside(window: Dashboard) -> bool:
    return bool(await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(
    "options",
    [WIDE | {"color_scheme": "light"}, WIDE | {"color_scheme": "dark"}, NARROW | {"color_scheme": "light"}],
    ids=["wide light", "wide dark", "narrow light"],
)
async def test_axe_finds_nothing_serious_on_any_page(
    options: dict[str, Any], served: tuple[Service, int], operator: Client, browser: Browser
) -> None:
    service, port = served
    ids = await filled(operator, service)
    assert json.dumps(await look(browser, port, operator.key, ids, **options), indent=1) == "{}"


async def test_axe_finds_nothing_serious_in_dialogs_and_errors(operator: Client, port: int, browser: Browser) -> None:
    dialogs = {
        "/dashboard/keys": ["Create a key", "Rotate", "Revoke"],
        "/dashboard/tenants": ["Create a tenant", "Rename"],
        "/dashboard/webhooks": ["Create a webhook"],
    }
    window = await dashboard_in(browser, port, **WIDE)
    page = window.page
    await window.sign_in(operator.key)
    for path, names in dialogs.items():
        for name in names:
            await window.visit(path)
            await page.get_by_role("button", name=name, exact=True).first.click()
            await page.get_by_role("dialog").wait_for()
            assert await window.violations() == [], name
    await page.goto(f"{window.root}/dashboard/webhooks/{format_id(operator.tenant_id)}")
    await page.get_by_role("alert").wait_for()
    assert await window.violations() == []
