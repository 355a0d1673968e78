"""The tree of pages that the documentation site is rendered from."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.site.api_reference import type_text, write_reference
from scripts.site.markdown import replace_links, separate_lists
from scripts.site.navigation import as_toml, navigation, paths_of
from scripts.site.staging import Stage

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    files = {
        "docs/index.md": "# Index\n\n[a](guides/a.md#x) [readme](../README.md) [m](../app/m.py) [rules](../x.yaml)\n",
        "docs/guides/a.md": "# A\n\n[index](../index.md), [b](b.md)\n",
        "docs/guides/b.md": "# B\n\n![drawing](../images/d.svg)\n",
        "docs/images/d.svg": "<svg/>",
        "app/m.py": "",
        "x.yaml": "groups: []\n",
    }
    outside = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
    outside += ["bench/GROWTH.md", "bench/RESULTS.md", "packages/turnkeep-minilm/README.md"]
    files |= dict.fromkeys(outside, "# Outside\n")
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Stage(tmp_path / "root", tmp_path / "pages")


def test_links_lead_to_the_copies_and_linked_files_are_copied(stage: Stage) -> None:
    stage.copy()
    assert (stage.folder / "index.md").read_text() == (
        "# Index\n\n[a](guides/a.md#x) [readme](overview.md) m [rules](files/x.yaml)\n"
    )
    assert (stage.folder / "files/x.yaml").read_text() == "groups: []\n"
    assert (stage.folder / "images/d.svg").exists()
    assert "](../index.md)" in (stage.folder / "guides/a.md").read_text()


def test_a_link_to_nothing_stops_the_build(stage: Stage) -> None:
    (stage.root / "docs/guides/b.md").write_text("[gone](c.md)")
    with pytest.raises(ValueError, match=r"docs/guides/b\.md: c\.md leads to nothing"):
        stage.copy()


def test_code_keeps_what_looks_like_a_link_or_a_list() -> None:
    text = "See `[a](b)`, [c](d).\n\n```text\n[a](b)\nwords\n- item\n```\nwords\n- item\n- item\n"
    changed = separate_lists(replace_links(text, lambda _: "other"))
    assert changed == "See `[a](b)`, [c](other).\n\n```text\n[a](b)\nwords\n- item\n```\nwords\n\n- item\n- item\n"


def test_the_navigation_follows_the_headings_and_links_of_the_index() -> None:
    table = "| page |\n|---|\n| [a](a.md) | is A |"
    index = f"# Top\n\n[no](entry.md) in text\n\n## One\n\n{table}\n\n### In it\n\n- [b `c`](b.md#d)\n"
    entries = navigation(index, {"a.md": [("More", "more.md")]})
    assert entries == [
        ("Home", "index.md"),
        ("One", [("A", [("Overview", "a.md"), ("More", "more.md")]), ("In it", [("B `c`", "b.md")])]),
    ]
    assert list(paths_of(entries)) == ["index.md", "a.md", "more.md", "b.md"]
    assert as_toml(entries[1:]).endswith('{ "In it" = [{ "B c" = "b.md" }] }] }]')


def test_the_reference_shows_operations_with_their_fields_and_objects() -> None:
    document = {
        "info": {"description": "About.", "version": "1"},
        "tags": [{"name": "things", "description": "All things."}],
        "paths": {"/things": {"post": {
            "tags": ["things"], "summary": "Make Thing", "operationId": "make_thing", "description": "Make one; or no.",
            "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
            "responses": {"201": {"content": {"application/json": {"schema": {}, "example": 1}}}, "409": {}},
        }}},
        "webhooks": {},
        "components": {"schemas": {"Thing": {
            "required": ["size"],
            "properties": {"size": {"type": "integer", "minimum": 1.0, "description": "How\nbig."}},
        }}},
    }  # fmt: skip
    pages = {page.path: page.text for page in write_reference(document)}
    assert "| [`POST /things`](things.md#make_thing) | Make one |" in pages["api/index.md"]
    for shown in ("## Make thing {#make_thing}", "| `size` | integer, ≥ 1 | Required. How big. |", "```json\n1\n```"):
        assert shown in pages["api/things.md"]
    assert "## Thing {#thing}" in pages["api/objects.md"]


def test_types_are_shown_in_words() -> None:
    union = {
        "anyOf": [{"type": "array", "items": {"$ref": "#/components/schemas/Part"}, "maxItems": 3}, {"type": "null"}]
    }
    assert type_text(union) == "list of [Part](objects.md#part), at most 3 items or null"
    assert type_text({"enum": ["a", "b"], "type": "string"}) == '`"a"` or `"b"`'
    assert type_text({"type": "string", "format": "date-time"}) == "string (date-time)"


@pytest.mark.slow
def test_the_build_fails_on_a_planted_link_to_no_heading(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "site.css").write_text("")
    shutil.copy(ROOT / "scripts/site/zensical.toml", tmp_path)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean", "--config-file"]
    for anchor, is_there in (("#there-is-one", True), ("#there-is-none", False)):
        (pages / "index.md").write_text(f"# Index\n\n[link]({anchor})\n\n## There is one\n")
        built = subprocess.run(
            [*command, str(tmp_path / "zensical.toml")], capture_output=True, text=True, check=False, timeout=60
        )
        assert (built.returncode == 0) is is_there, built.stdout + built.stderr
    assert "anchor does not exist" in built.stderr
