"""Each class has a name of its own: a reader who searches for it finds one."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def repeated_types(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the name of each class that several modules define, or one several times, with these modules."""
    modules: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(path)
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


@pytest.mark.slow
def test_each_type_has_a_name_of_its_own() -> None:
    files = sorted((ROOT / "app").rglob("*.py"))
    assert repeated_types({str(path.relative_to(ROOT)): path.read_text() for path in files}) == {}


def test_a_type_name_that_two_modules_define_is_found() -> None:
    sources = {
        "app/a.py": "class Place: ...\n",
        "app/b.py": "def f():\n    class Place: ...\n",
        "app/c.py": "class C: ...\n",
    }
    assert repeated_types(sources) == {"Place": ["app/a.py", "app/b.py"]}
