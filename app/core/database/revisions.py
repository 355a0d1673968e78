"""The schema revisions of this release, and the releases that can run on each revision.

A database records two revisions. `schema_version` has its current one. `alembic_version` has the oldest one whose
release can still run on it, so a release that finds an unknown, newer schema knows whether it can serve. Release 0.1.0
reads `alembic_version` only, and runs if it finds its own revision there.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

VERSION_TABLE: Final = "schema_version"
OLDEST_REPLICA_TABLE: Final = "alembic_version"
FIRST_RELEASE: Final = "0014"
"""The revision of release 0.1.0. No release needs an older one."""


class SchemaState(StrEnum):
    """State of a database, as seen by this release."""

    MISSING = "missing"
    OLDER = "older"
    CURRENT = "current"
    NEWER = "newer"
    """From a newer release; this release can run on it."""
    UNUSABLE = "unusable"
    """From a newer release; this release cannot run on it."""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The current revision of a database, and the oldest revision whose release can run on it."""

    revision: str
    oldest_replica: str


def schema_state(version: SchemaVersion | None, known: Sequence[str]) -> SchemaState:
    """Return the state of a database at `version` for a release that knows these revisions, oldest first."""
    if version is None:
        return SchemaState.MISSING
    if version.revision in known:
        return SchemaState.CURRENT if version.revision == known[-1] else SchemaState.OLDER
    return SchemaState.NEWER if version.oldest_replica in known else SchemaState.UNUSABLE


def migrations_path() -> Path:
    """Return the folder of the migrations: in the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[2]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "alembic"


def head_revision() -> str:
    """Return the newest revision of this release."""
    return known_revisions()[-1]


def known_revisions() -> list[str]:
    """Return every revision of this release, oldest first."""
    return [revision for revision, _ in _scripts()]


def application_name(pool: str) -> str:
    """Return the name of a pool's connections. It contains the revision of this release, which `migrate` reads."""
    return f"{pool}/{head_revision()}"


def oldest_replica(revision: str) -> str:
    """Return the oldest revision whose release can run on a database at `revision`.

    A migration that removes something an older release needs sets `oldest_replica = "…"`: the first revision whose
    release works without it.
    """
    scripts = _scripts()
    known = [name for name, _ in scripts]
    done = scripts[: known.index(revision) + 1]
    oldest = max((named for _, named in done if named is not None), key=known.index, default=FIRST_RELEASE)
    return min(oldest, revision, key=known.index)


def oldest_release_during_migration(current: str | None) -> str | None:
    """Return the oldest revision whose release may run during a migration from `current`; None: any."""
    scripts = _scripts()
    known = [name for name, _ in scripts]
    pending = scripts if current is None else scripts[known.index(current) + 1 :]
    return max((named for _, named in pending if named is not None), key=known.index, default=None)


def outdated(running: Iterable[str], *, oldest: str | None) -> set[str]:
    """Return the revisions in `running` that are older than `oldest`. An unknown revision is a newer one."""
    if oldest is None:
        return set()
    known = known_revisions()
    return {revision for revision in running if revision in known and known.index(revision) < known.index(oldest)}


def _scripts() -> list[tuple[str, str | None]]:
    """Return every revision of this release with its `oldest_replica`, oldest first.

    The migrations are parsed as text, so that commands that read only the revision start without alembic.
    """
    found = [_constants(file.read_text()) for file in migrations_path().glob("versions/*.py")]
    after = {script.get("down_revision"): script for script in found}
    ordered: list[tuple[str, str | None]] = []
    revision: str | None = None
    while (script := after.get(revision)) is not None:
        revision = script["revision"]
        ordered.append((str(revision), script.get("oldest_replica")))
    return ordered


def _constants(text: str) -> dict[str, str | None]:
    """Return the top-level names of a migration whose value is a string or None."""
    return {
        target.id: node.value.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and (node.value.value is None or isinstance(node.value.value, str))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
