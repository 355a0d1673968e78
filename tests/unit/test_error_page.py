"""The page of error codes that a server shows: every code, with its status and what to do."""

import re

from app.core.error_codes import ERROR_CODES
from scripts.site.error_page import SOURCE, TARGET, entries, write_page


def test_the_page_of_the_server_is_made_from_the_document_of_errors() -> None:
    assert TARGET.read_text() == write_page(SOURCE.read_text()), "make error-page"


def test_every_code_has_a_section_with_its_status_and_more_than_its_title() -> None:
    found = {entry.code: entry for entry in entries(SOURCE.read_text())}
    assert sorted(found) == sorted(ERROR_CODES)
    for entry in found.values():
        remedy = entry.text.removeprefix(entry.title).strip()
        assert len(remedy) > 15, f"{entry.code} does not say what to do"
        assert re.match(r"\d{3}|at start$|command$|job$|operation$", entry.where), entry.code
    assert found["rate_limited"].is_retryable
    assert not found["not_found"].is_retryable


def test_text_of_the_document_becomes_html_without_markup_of_its_own() -> None:
    page = write_page("### not_found\n404. Use `<b>` or [this](#forbidden), and [not that](guides/keys.md) & more.\n")
    assert '<code>&lt;b&gt;</code> or <a href="#forbidden">this</a>, and not that &amp; more.' in page
    assert page.count('id="not_found"') == 1
