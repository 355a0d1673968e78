"""The pages of the dashboard for operation and administration, in a real browser."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from app.core.ids import format_id
from tests.support.api import Client, Service
from tests.support.browser import needs_chromium
from tests.support.dashboard import dashboard_in
from tests.support.receiver import receiving

pytestmark = [needs_chromium, pytest.mark.slow]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


async def confirm(page: Page, name: str, action: str) -> None:
    """Type the name of the object into the confirmation, which waits for it."""
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name=action)
    await expect(button).to_be_disabled()
    await dialog.get_by_label("To confirm, type").fill(name)
    await button.click()


async def test_a_key_is_made_restricted_rotated_and_revoked(
    service: Service, client: Client, port: int, browser: Browser
) -> None:
    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(client.key)
    await window.visit("/dashboard/keys")
    await page.get_by_role("button", name="Create a key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill(HOSTILE)
    await dialog.get_by_label("Only these owners").fill("ann, bob")
    await expect(dialog.get_by_label("admin", exact=False).first).to_be_disabled()
    await dialog.get_by_role("button", name="Create a key").click()
    first = await page.locator(".secret code").inner_text()
    await page.get_by_role("button", name="I have kept it").click()
    async with service.client(first) as holder:
        own = (await holder.get("/v1/keys/self")).json()
    assert (own["name"], own["scopes"], own["owners"]) == (HOSTILE, ["read", "write"], ["ann", "bob"])
    row = page.get_by_role("row").filter(has_text="ann")
    await expect(row.locator("strong")).to_have_text(HOSTILE)

    await row.get_by_role("button", name="Rotate").click()
    await dialog.get_by_label("The old secret stays valid for").select_option("no time")
    await dialog.get_by_role("button", name="Rotate").click()
    second = await page.locator(".secret code").inner_text()
    assert second != first
    await page.get_by_role("button", name="I have kept it").click()

    await row.get_by_role("button", name="Revoke").click()
    await confirm(page, HOSTILE, "Revoke")
    await expect(row.get_by_text("revoked")).to_be_visible()
    await asyncio.sleep(service.settings.tenancy.key_cache_s)
    for key in (first, second):
        async with service.client(key) as holder:
            assert (await holder.get("/v1/keys/self")).status_code == 401

    own_row = page.get_by_role("row").filter(has_text="first key")
    await own_row.get_by_role("button", name="Revoke").click()
    await confirm(page, "first key", "Revoke")
    note = page.get_by_role("dialog").get_by_role("alert")
    await expect(note).to_contain_text("last key that administers the tenant")
    await expect(note).to_contain_text("Request id")
    assert [text for text in window.complaints if "409" not in text] == []


async def test_an_operator_makes_a_tenant_opens_it_and_limits_it(
    served: tuple[Service, int], operator: Client, browser: Browser
) -> None:
    service, port = served
    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(operator.key)
    await window.visit("/dashboard/tenants")
    await page.get_by_role("button", name="Create a tenant").click()
    await page.get_by_role("dialog").get_by_label("Name").fill(HOSTILE)
    await page.get_by_role("dialog").get_by_role("button", name="Create a tenant").click()
    await page.get_by_role("button", name="Open this tenant now").click()
    await expect(page.locator("#key-switch option:checked")).to_contain_text(HOSTILE)
    await window.visit("/dashboard/keys")
    await expect(page.get_by_role("row")).to_have_count(2)
    # the switch leads back to the operator's own tenant
    await page.locator("#key-switch").select_option(index=0)
    await window.visit("/dashboard/tenants")
    row = page.get_by_role("row").filter(has_text=HOSTILE)
    await row.get_by_role("link", name="Limits").click()
    await page.get_by_role("spinbutton", name="Turns", exact=True).fill("7")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".quotas")).to_contain_text("0 of 7")
    defaults = (await operator.get("/v1/admin/limits")).json()["defaults"]["rates"]
    reads = page.get_by_role("spinbutton", name="Reads", exact=True)
    await expect(reads).to_have_attribute("placeholder", f"default: {defaults['read']:,.0f}")
    await expect(reads).to_have_value("")

    await window.visit("/dashboard/tenants")
    await row.get_by_role("button", name="Erase").click()
    await confirm(page, HOSTILE, "Erase")
    await expect(page.locator(".operation")).to_contain_text("waiting")
    await service.run_jobs()
    await expect(page.locator(".operation")).to_contain_text("done")
    await expect(row).to_have_count(0)
    assert window.complaints == []


async def test_an_erasure_shows_its_progress_and_a_receipt_that_verifies(
    served: tuple[Service, int], client: Client, browser: Browser
) -> None:
    service, port = served
    await client.conversation(owner=HOSTILE)
    kept = await client.conversation(owner="bob")
    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(client.key)
    await window.visit("/dashboard/erasures")
    for cancelled in (True, False):
        await page.get_by_label("Owner").fill(HOSTILE)
        await page.get_by_role("button", name="Erase").click()
        await confirm(page, HOSTILE, "Erase")
        card = page.locator(".operation").first
        await expect(card).to_contain_text("waiting")
        if cancelled:
            await card.get_by_role("button", name="Cancel").click()
            await expect(card).to_contain_text("ends after this step")
            await service.run_jobs()
            await expect(card.get_by_role("status")).to_have_text("cancelled")
        else:
            # a page that is loaded again finds what runs
            await page.reload()
            await expect(card).to_contain_text("waiting")
            await service.run_jobs()
            await expect(card.get_by_role("status")).to_have_text("done")
    listed = (await client.get("/v1/conversations")).json()["data"]
    assert [one["id"] for one in listed] == [kept]
    await page.get_by_role("row").filter(has_text="complete").get_by_role("button", name="Receipt").click()
    dialog = page.get_by_role("dialog")
    for owner, outcome in ((HOSTILE, "The receipt is about this subject."), ("bob", "is not about this subject")):
        await dialog.get_by_label("Owner").fill(owner)
        await dialog.get_by_role("button", name="Verify the signature").click()
        await expect(dialog).to_contain_text("This installation signed the receipt")
        await expect(dialog).to_contain_text(outcome)
    assert window.complaints == []


async def test_an_export_is_downloaded_and_imported_into_another_tenant(
    served: tuple[Service, int], client: Client, other: Client, tmp_path: Path, browser: Browser
) -> None:
    service, port = served
    conversation = await client.conversation(title=HOSTILE)
    await client.append(conversation, "one", "two")
    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(client.key)
    await window.visit("/dashboard/transfer")
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Export and download").click()
    await expect(page.get_by_text("The export is complete")).to_be_visible()
    file = tmp_path / "export.ndjson"
    await (await downloading.value).save_as(file)
    kinds = [json.loads(line)["type"] for line in file.read_text().splitlines()]
    assert (kinds[0], kinds[-1], kinds.count("turn")) == ("header", "trailer", 2)

    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(other.key)
    await window.visit("/dashboard/transfer")
    await page.get_by_label("File").set_input_files(file)
    for check in (True, False):
        await page.get_by_label("Only check").set_checked(check)
        await page.get_by_role("button", name="Check the file" if check else "Import", exact=True).click()
        await expect(page.locator(".operation").first).to_contain_text("waiting")
        await service.run_jobs()
        await expect(page.locator(".operation").first.get_by_role("status")).to_have_text("done")
        stored = (await other.get("/v1/conversations")).json()["data"]
        assert [one["title"] for one in stored] == ([] if check else [HOSTILE])
    assert window.complaints == []


async def test_a_webhook_is_made_tested_and_its_dead_letters_are_sent_again(
    served: tuple[Service, int], client: Client, browser: Browser
) -> None:
    service, port = served
    async with receiving() as receiver:
        window = await dashboard_in(browser, port)
        page = window.page
        await window.sign_in(client.key)
        await window.visit("/dashboard/webhooks")
        await page.get_by_role("button", name="Create a webhook").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("URL").fill(receiver.url)
        await dialog.get_by_label("Description").fill(HOSTILE)
        await dialog.get_by_role("button", name="Create a webhook").click()
        assert (await page.locator(".secret code").inner_text()).startswith("whsec_")
        await page.get_by_role("button", name="I have kept it").click()
        await expect(page.get_by_role("heading", name=receiver.url)).to_be_visible()
        await page.get_by_role("button", name="Send a test event").click()
        await expect(page.locator(".toast", has_text="The test event is sent")).to_be_visible()
        await service.container.webhooks.dispatcher.drain()
        row = page.get_by_role("row").filter(has_text="webhook.test")
        await expect(row.get_by_text("delivered")).to_be_visible()
        await row.get_by_role("button", name="Send again").click()
        await expect(page.locator(".toast", has_text="sent again")).to_be_visible()
        await service.container.webhooks.dispatcher.drain()
        assert len(receiver.received) == 2
        await page.get_by_role("button", name="Send dead letters again").click()
        await page.get_by_role("dialog").get_by_role("button", name="Send again").click()
        await expect(page.locator(".operation")).to_contain_text("waiting")
        await service.run_jobs()
        await expect(page.locator(".operation").get_by_role("status")).to_have_text("done")
        await page.get_by_role("button", name="Disable").click()
        await expect(page.get_by_role("button", name="Enable")).to_be_visible()
        await page.get_by_role("button", name="Delete").click()
        await confirm(page, receiver.url, "Delete")
        await expect(page.get_by_text("No webhook yet")).to_be_visible()
        assert window.complaints == []


async def test_operations_shows_figures_over_time_and_jobs_are_cancelled_and_run_again(
    served: tuple[Service, int], operator: Client, browser: Browser
) -> None:
    service, port = served
    conversation = await operator.conversation()
    await operator.append(conversation, *[f"turn {number}" for number in range(5)])
    started = await operator.post("/v1/erasures", json={"owner": "nobody"})
    assert started.status_code == 202
    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(operator.key)
    for _ in range(3):
        service.app.state.turnkeep.monitor.sample()
    await window.visit("/dashboard/operations")
    # two more show tokens and spend where other tests have used a model
    charts = page.locator(".charts").first.locator(".chart")
    await expect(charts.locator("canvas")).to_have_count(7)
    await expect(charts.first).to_contain_text("read")
    await expect(page.locator(".tiles")).to_contain_text("Requests per second")
    await expect(page.get_by_role("region", name="Slow calls")).to_contain_text("/v1/")
    replica = page.get_by_role("region", name="Replicas").get_by_role("row").filter(has_text="answered this page")
    await expect(replica).to_contain_text(service.app.version)
    waiting = page.get_by_role("region", name="Work that waits").get_by_role("row")
    await expect(waiting.filter(has_text="operations.erasure")).to_be_visible()
    for name in ("Refresh", "Show the jobs"):
        await expect(page.get_by_text(name).first).to_be_visible()

    await window.visit("/dashboard/jobs?kind=operations.erasure")
    row = page.get_by_role("row").filter(has_text=format_id(operator.tenant_id))
    await row.get_by_role("button", name="Cancel").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel the job operations.erasure").click()
    await expect(row.get_by_text("cancelled")).to_be_visible()
    await row.get_by_role("button", name="Run now").click()
    await expect(row.get_by_text("waiting")).to_be_visible()
    await page.get_by_label("State").select_option("parked: failed too often")
    await expect(page.get_by_text("No job matches these filters.")).to_be_visible()
    assert window.complaints == []


async def test_the_audit_log_is_filtered_and_paged(client: Client, port: int, browser: Browser) -> None:
    made: list[dict[str, Any]] = [
        (await client.post("/v1/admin/keys", json={"name": f"key {number}"})).json() for number in range(3)
    ]
    for _ in range(105):
        await client.conversation()
    window = await dashboard_in(browser, port)
    page = window.page
    await window.sign_in(client.key)
    await window.visit("/dashboard/audit")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(100)
    await page.get_by_role("button", name="Load more").click()
    await expect(rows).not_to_have_count(100)
    await page.get_by_label("Action").select_option("keys.create")
    await expect(rows).to_have_count(3)
    await expect(rows.first.get_by_text("1 key", exact=True)).to_be_visible()
    await page.get_by_label("Object id").fill(made[0]["id"])
    await expect(rows).to_have_count(1)
    await page.get_by_role("button", name="Clear the filters").click()
    await expect(rows).to_have_count(100)
    await page.get_by_role("button", name="Verify the audit").click()
    await expect(page.get_by_role("status").filter(has_text="The audit is valid")).to_contain_text("not sealed yet")
    assert window.complaints == []
