"""The documents say what the code does: settings, error codes, links, and the manner of CONTRIBUTING."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import AliasChoices

from app.core import errors
from app.core.error_codes import ERROR_CODES
from app.routers.http.problems import status_of
from app.settings import setting_fields
from scripts.reference.error_advice import ERROR_ADVICE
from scripts.reference.pages import current_text, page_names

ROOT = Path(__file__).parents[2]
CODE = sorted((ROOT / "app").rglob("*.py"))
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "app").rglob("*.md"),
        *(ROOT / "packages").rglob("*.md"),
    ]
)
KINDS = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.AppError)
}
PREFIX = "TURNKEEP_"
SETTING_ROW = re.compile(r"^\| `(\w+)` \| (?:`[^`]*`|empty) \|", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/~…])/(?:etc|home|mnt|opt|private|root|srv|tmp|usr|Users|var|work)(?:/|\b)")
FORBIDDEN_WORDS = re.compile(r"none of these words:\n\n((?:> .*\n)+)")


def literals(tree: ast.AST) -> Iterator[str]:
    """Every text that stands literally in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def raised_codes(tree: ast.AST) -> Iterator[tuple[str, type[errors.AppError]]]:
    """Every code that is given literally to the constructor of an error, with its kind."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        first, name = node.args[0], node.func
        called = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
        if called in KINDS and isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value, KINDS[called]


def headings_of(text: str) -> set[str]:
    """The anchors of a document's headings, as a renderer makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", page_names())
def test_the_generated_parts_of_a_page_are_current(page: str) -> None:
    assert (ROOT / page).read_text() == current_text(page), "make reference"


def test_every_setting_is_documented_once() -> None:
    documented = SETTING_ROW.findall((ROOT / "docs/settings.md").read_text())
    assert sorted(documented) == sorted(PREFIX + name.upper() for name in setting_fields())


def test_the_glossary_is_in_alphabetical_order() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    terms = [term.lower() for term in re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)][1:]
    assert terms == sorted(terms)


def test_names_that_are_honoured_bare_are_documented() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    for name, field in setting_fields().items():
        alias = field.validation_alias
        choices = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else []
        bare = [choice for choice in choices if choice.isupper() and not choice.startswith(PREFIX)]
        assert all(f"`{choice}`" in page for choice in bare), name


def test_no_document_names_a_setting_that_does_not_exist() -> None:
    known = {PREFIX + name.upper() for name in setting_fields()}
    known |= {"TURNKEEP_TEST_CITUS", "TURNKEEP_TEST_POSTGRES", "TURNKEEP_TEST_RECORD"}
    known |= {f"TURNKEEP_TEST_LLM_{name}" for name in ("BASE_URL", "MODEL", "API_KEY")}
    aliases = [field.validation_alias for field in setting_fields().values()]
    known |= {str(choice) for alias in aliases if isinstance(alias, AliasChoices) for choice in alias.choices}
    for path in DOCUMENTS:
        unknown = set(re.findall(rf"{PREFIX}[A-Z0-9_]*[A-Z0-9]", path.read_text())) - known
        assert not unknown, named(path)


@pytest.mark.slow
def test_every_code_that_is_raised_is_in_the_catalogue() -> None:
    raised = {code: named(path) for path in CODE for code, _ in raised_codes(ast.parse(path.read_text()))}
    assert {code: path for code, path in raised.items() if code not in ERROR_CODES} == {}


@pytest.mark.slow
def test_the_statuses_on_the_page_are_those_of_the_errors_that_are_raised() -> None:
    for path in CODE:
        for code, kind in raised_codes(ast.parse(path.read_text())):
            where, _ = ERROR_ADVICE[code]
            if where[0].isdigit():
                assert str(status_of(kind(code, "…"))) in where, f"{code} in {named(path)}"


@pytest.mark.slow
def test_every_code_in_the_catalogue_is_used() -> None:
    modules = [path for path in CODE if path.name != "error_codes.py"]
    used = {text for path in modules for text in literals(ast.parse(path.read_text()))}
    assert sorted(set(ERROR_CODES) - used) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    text = path.read_text()
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target) if target else path
        assert file.exists(), link
        assert not anchor or anchor in headings_of(file.read_text()), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_no_document_holds_an_absolute_path(path: Path) -> None:
    assert ABSOLUTE_PATH.findall(path.read_text()) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_no_document_uses_the_words_that_contributing_forbids(path: Path) -> None:
    found = FORBIDDEN_WORDS.search((ROOT / "CONTRIBUTING.md").read_text())
    assert found is not None, "CONTRIBUTING lists no words"
    words = [word.strip() for word in found[1].replace("> ", " ").replace("\n", " ").split(",")]
    text = path.read_text().replace(found[1], "")
    used = [word for word in words if re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)]
    assert used == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_shell_and_python_in_documents_parse(path: Path) -> None:
    for language, code in FENCE.findall(path.read_text()):
        if language in {"sh", "bash"}:
            checked = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True, check=False)
            assert checked.returncode == 0, checked.stderr
        elif language == "python":
            ast.parse(code)


def test_decisions_have_a_number_each_and_are_titled_by_it() -> None:
    pages = sorted((ROOT / "docs/decisions").rglob("0*.md"))
    assert len({page.name[:4] for page in pages}) == len(pages)
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]} "), page.name
        for heading in ("Context", "Decision", "Consequences", "Alternatives"):
            assert f"\n## {heading}\n" in text, f"{page.name} has no {heading}"


@pytest.mark.parametrize("folder", ["docs/decisions", "docs/decisions/archive"])
def test_the_page_of_a_folder_lists_its_decisions_by_their_titles(folder: str) -> None:
    listed = re.findall(r"^- \[(.+)\]\(([\w.-]+)\)$", (ROOT / folder / "README.md").read_text(), re.MULTILINE)
    pages = sorted((ROOT / folder).glob("0*.md"))
    assert listed == [(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in pages]


def test_at_most_25_decisions_are_outside_of_the_archive() -> None:
    assert len(list((ROOT / "docs/decisions").glob("0*.md"))) <= 25


def test_the_index_lists_every_guide_and_recipe() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    linked = set(re.findall(r"\]\((?:\./)?((?:guides|reference|cookbook|migrate)/[\w.-]+\.md)", index))
    pages = {f"{folder}/{path.name}" for folder in ("guides", "reference", "cookbook", "migrate")
             for path in (ROOT / "docs" / folder).glob("*.md")}  # fmt: skip
    assert pages - linked == set()
