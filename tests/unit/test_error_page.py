"""The page of error codes that a server shows: every code, with its status and what to do."""

import re

from app.core.error_codes import ERROR_CODES
from scripts.reference.error_advice import ERROR_ADVICE
from scripts.site.error_page import TARGET, Entry, entries, write_page


def test_the_page_of_the_server_is_current() -> None:
    assert TARGET.read_text() == write_page(entries()), "make error-page"


def test_every_code_says_where_it_is_met_and_what_to_do() -> None:
    assert list(ERROR_ADVICE) == sorted(ERROR_CODES)
    for entry in entries():
        assert len(entry.advice) > 10, f"{entry.code} does not say what to do"
        assert re.match(r"\d{3}|(at start|command|job|operation)$", entry.where), entry.code


def test_text_becomes_html_without_markup_of_its_own() -> None:
    advice = "Use `<b>` or [this](#forbidden), and [not that](guides/keys.md) & more."
    page = write_page([Entry("not_found", "Gone.", "404", is_retryable=False, advice=advice)])
    assert '<code>&lt;b&gt;</code> or <a href="#forbidden">this</a>, and not that &amp; more.' in page
    assert page.count('id="not_found"') == 1
