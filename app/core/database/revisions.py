"""The schema revisions that this build knows, oldest first.

A database records its revision in `alembic_version`.
"""

import ast
from pathlib import Path


def migrations_path() -> Path:
    """Return the folder of the migrations: in the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[2]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "alembic"


def head_revision() -> str:
    """Return the newest revision of this build."""
    return known_revisions()[-1]


def known_revisions() -> list[str]:
    """Return every revision of this build, oldest first.

    The migrations are parsed as text, so that commands that read only the revision start without alembic.
    """
    after = dict(_revisions(file.read_text()) for file in migrations_path().glob("versions/*.py"))
    ordered: list[str] = []
    revision: str | None = None
    while (revision := after.get(revision)) is not None:
        ordered.append(revision)
    return ordered


def _revisions(text: str) -> tuple[str | None, str]:
    """Return the revision that a migration follows (None: it is the first one), and its own."""
    names = {
        target.id: node.value.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    before = names["down_revision"]
    return None if before is None else str(before), str(names["revision"])
