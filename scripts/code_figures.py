"""Figures of the code: modules and lines per folder, names defined more than once, lengths of modules and functions.

Usage: `python scripts/code_figures.py [COMMIT …]`, each commit in a column; without one, the working tree.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from statistics import median

ROOT = Path(__file__).parents[1]


@dataclass
class Figures:
    """What is counted in one version of `app/`."""

    modules: Counter[str] = field(default_factory=Counter[str])
    lines: Counter[str] = field(default_factory=Counter[str])
    classes: Counter[str] = field(default_factory=Counter[str])
    functions: Counter[str] = field(default_factory=Counter[str])
    module_lengths: list[int] = field(default_factory=list[int])
    function_lengths: list[int] = field(default_factory=list[int])


def main(commits: list[str]) -> None:
    """Print the figures of each commit, or of the working tree."""
    names = commits or ["working tree"]
    columns = [count(at_commit(one) if commits else working_tree()) for one in names]
    print(f"{'':58}" + "".join(f"{one[:12]:>16}" for one in names))
    for folder in sorted({folder for one in columns for folder in one.modules}):
        print(f"{folder:58}" + "".join(f"{f'{one.modules[folder]} / {one.lines[folder]}':>16}" for one in columns))
    row("lines in all", [sum(one.lines.values()) for one in columns])
    row("modules in all", [sum(one.modules.values()) for one in columns])
    row("most modules in a folder", [max(one.modules.values()) for one in columns])
    row("types defined more than once", [repeated(one.classes) for one in columns])
    row("public functions of modules defined more than once", [repeated(one.functions) for one in columns])
    row("median module, lines", [round(median(one.module_lengths)) for one in columns])
    row("longest module, lines", [max(one.module_lengths) for one in columns])
    row("median function, lines", [round(median(one.function_lengths)) for one in columns])
    row("longest function, lines", [max(one.function_lengths) for one in columns])


def row(name: str, values: list[int]) -> None:
    """Print one line of the table."""
    print(f"{name:58}" + "".join(f"{value:>16}" for value in values))


def repeated(names: Counter[str]) -> int:
    """Return how many names are defined more than once."""
    return sum(1 for times in names.values() if times > 1)


def working_tree() -> Iterator[tuple[str, str]]:
    """Yield path and source of every module of `app/` as it is on disk."""
    for path in sorted((ROOT / "app").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def at_commit(commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and source of every module of `app/` in a commit."""
    for path in git("ls-tree", "-r", "--name-only", commit, "app/").splitlines():
        if path.endswith(".py"):
            yield path, git("show", f"{commit}:{path}")


def git(*arguments: str) -> str:
    """Return the output of a git command in this repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603, S607 - git of the developer, on this repository


def count(sources: Iterator[tuple[str, str]]) -> Figures:
    """Count one version of the code. An `__init__.py` counts in lines, not as a module."""
    figures = Figures()
    for path, source in sources:
        folder, lines = str(PurePosixPath(path).parent), source.count("\n")
        figures.lines[folder] += lines
        if not path.endswith("__init__.py"):
            figures.modules[folder] += 1
            figures.module_lengths.append(lines)
        tree = ast.parse(source)
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    figures.classes[node.name] += 1
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    figures.function_lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                case _:
                    pass
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                figures.functions[node.name] += 1
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
