"""The parts of the documents that are written from code."""

import pytest

from scripts.reference.database_tables import described_tables
from scripts.reference.pages import replace_part
from scripts.reference.settings import settings

BEGIN, END = "<!-- begin: x (written by `make reference`) -->", "<!-- end: x -->"


def test_a_part_is_replaced_and_the_text_around_it_stays() -> None:
    page = f"# Page\n\n{BEGIN}\n\nold\n\n{END}\n\nText.\n"
    assert replace_part(page, "x", "new\n") == f"# Page\n\n{BEGIN}\n\nnew\n\n{END}\n\nText.\n"


def test_a_page_without_the_part_is_refused() -> None:
    with pytest.raises(ValueError, match="0 parts named 'x'"):
        replace_part("# Page\n", "x", "new")


def test_a_table_has_the_text_under_it() -> None:
    source = 'a = Table("a", METADATA)\n"""Rows."""\nb = 1\n'
    assert described_tables(source, "m") == [("a", "Rows.")]
    with pytest.raises(ValueError, match="m: a has no text under it"):
        described_tables('a = Table("a", METADATA)\nb = Table("b", METADATA)\n"""Rows."""\n', "m")


def test_a_setting_has_its_default_its_values_and_its_range() -> None:
    page = settings()
    assert "| `TURNKEEP_PORT` | `8765` | Port the server listens on; 0: a free one. 0–65,535. |" in page
    assert (
        "| `TURNKEEP_LOG_LEVEL` | `info` | Lowest level that is logged. `debug`, `info`, `warning` or `error`. |"
        in page
    )
    assert "Also `DATABASE_URL`. |" in page
    assert page.count("| `TURNKEEP_OPENAI_API_KEY` |") == 1
