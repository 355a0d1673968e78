"""Names that this project gave up for the standard term, and words that its prose does without."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "app").rglob("*.py"))

STANDARD = {
    "appender": "append",
    "appending": "append",
    "ask_fence": "prompt_delimiters",
    "ask_guard": "output_filter",
    "bare": "include_content=False",
    "Channel": "ConversationProjection",
    "Choice": "AppendPlan",
    "covering": "summary_invalidation",
    "doubt": "mark_uncertain",
    "folding": "chunk_merge",
    "forget": "remove, evict or clear",
    "gate": "maxscore",
    "hear": "on_message",
    "Held": "OpenTurnBuffer",
    "held": "OpenTurnBuffer",
    "judgements": "checks",
    "Keeper": "FactWriter",
    "late": "vector_backfill",
    "Look": "DatabaseSnapshot",
    "Manner": "RequestVariant",
    "McpDoor": "McpEndpoint",
    "mend": "remedy",
    "Offer": "IdempotentAppend",
    "one_moment": "repeatable_read",
    "plain": "rule_extractor",
    "reading": "clause_parser",
    "remember": "store_result",
    "Repeatable": "IdempotencyKey",
    "settle": "reconcile",
    "Shelf": "FactTimeline",
    "Side": "EmbeddingSpaceRuntime",
    "standing": "valid",
    "tell_look": "apply_snapshot",
    "Teller": "EventSource",
    "tiered": "is_indexed",
    "tiers": "ann_maintenance",
    "Told": "BusEvent",
    "told": "event",
    "Trouble": "ErrorMapper",
    "unmasking": "deobfuscation",
    "Voice": "TurnAuthor",
    "Watch": "list_subscription",
    "watching": "list_subscription",
    "wide": "ann_search",
    "withholding": "pii_filter",
    "wordings": "revisions",
}
"""A name that no module, class or function has, and the name for it. `claim` is left out: a worker claims a job."""
PREFIXES = ("most_", "at_most_")
WORDS = (
    "mend",
    "mended",
    "mends",
    "whoever",
    "somebody",
    "nobody",
    "anybody",
    "anew",
    "hear",
    "hears",
    "heard",
    "told",
)
"""Words that docstrings and comments do without; words in backticks and in quotes are somebody else's."""
TEST_WORDS = frozenset({*WORDS, "door", "doors", "everybody", "fence", "tells", "voided", "whatever"})
"""Words that names of tests do without."""
_WORDS = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
_QUOTED = re.compile(r'`[^`]*`|"[^"]*"')


def definitions(path: Path, source: str) -> Iterator[tuple[int, str]]:
    yield 1, path.parent.name if path.stem == "__init__" else path.stem
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name


def replaced_names(path: Path, source: str) -> list[str]:
    found: list[str] = []
    for line, name in definitions(path, source):
        public = name.lstrip("_")
        if public in STANDARD:
            found.append(f"{path.name}:{line}: {name} is called {STANDARD[public]}")
        elif public.startswith(PREFIXES):
            found.append(f"{path.name}:{line}: {name} begins with max_")
    return found


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, strings that stand under what they describe, and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def odd_words(path: Path, source: str) -> list[str]:
    return [
        f"{path.name}:{line}: {match[0]}"
        for line, text in prose(source)
        for match in _WORDS.finditer(_QUOTED.sub("", text))
    ]


def repeated_types(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the name of each class that several modules define, or one several times, with these modules."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


@pytest.mark.slow
def test_each_type_has_a_name_of_its_own() -> None:
    assert repeated_types({str(path.relative_to(ROOT)): path.read_text() for path in FILES}) == {}


def test_a_type_name_that_two_modules_define_is_found() -> None:
    sources = {
        "app/a.py": "class Place: ...\n",
        "app/b.py": "def f():\n    class Place: ...\n",
        "app/c.py": "class C: ...\n",
    }
    assert repeated_types(sources) == {"Place": ["app/a.py", "app/b.py"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_defined_under_a_name_that_was_given_up(path: Path) -> None:
    assert replaced_names(path, path.read_text()) == []


def test_a_definition_under_such_a_name_is_found() -> None:
    source = "class Voice: ...\nasync def _remember(): ...\ndef most_turns(): ...\ndef max_turns(): ...\n"
    assert replaced_names(Path("app/x.py"), source) == [
        "x.py:1: Voice is called TurnAuthor",
        "x.py:2: _remember is called store_result",
        "x.py:3: most_turns begins with max_",
    ]
    assert replaced_names(Path("app/index/tiers.py"), "") == ["tiers.py:1: tiers is called ann_maintenance"]
    assert replaced_names(Path("app/late/__init__.py"), "") == ["__init__.py:1: late is called vector_backfill"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_and_comments_use_plain_words(path: Path) -> None:
    assert odd_words(path, path.read_text()) == []


def test_such_a_word_is_found() -> None:
    source = '"""Whoever asks."""\nx = 1  # the writer is told\ny = "nobody"\nz = 2\n"""The account `nobody`."""\n'
    assert odd_words(Path("app/x.py"), source) == ["x.py:1: Whoever", "x.py:2: told"]


def odd_test_names(path: Path, source: str) -> list[str]:
    return [
        f"{path.name}: {name}"
        for _, name in definitions(path, source)
        if name.startswith("test_") and not TEST_WORDS.isdisjoint(name.split("_"))
    ]


@pytest.mark.parametrize(
    "folder", sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_names_of_tests_use_plain_words(folder: Path) -> None:
    assert [one for path in folder.rglob("test_*.py") for one in odd_test_names(path, path.read_text())] == []


def test_such_a_word_in_the_name_of_a_test_is_found() -> None:
    source = "def test_a_writer_is_told(): ...\ndef test_a_writer_gets_an_error(): ...\n"
    assert odd_test_names(Path("tests/test_x.py"), source) == ["test_x.py: test_a_writer_is_told"]
