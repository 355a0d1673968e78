"""Restrictions of keys to projects and owners. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.core.errors import FieldError, Forbidden, Invalid
from app.tenancy.scopes import Scope

MAX_RESTRICTED: Final = 100
"""Projects, and owners, that a key can be restricted to."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The projects and owners that a caller reaches, each of them None for all.

    With `owners`, objects without an owner are outside.
    """

    projects: frozenset[str] | None = None
    owners: frozenset[str] | None = None

    def includes(self, project: str, owner: str | None) -> bool:
        """Return whether an object of this project and owner is inside."""
        return (self.projects is None or project in self.projects) and self.includes_owner(owner)

    def includes_owner(self, owner: str | None) -> bool:
        """Return whether an object of this owner, and of no project, is inside."""
        return self.owners is None or owner in self.owners

    def owner_of_new(self, project: str, owner: str | None) -> str | None:
        """Return the owner of a new object: the given one, else the only one inside. Raises Forbidden outside."""
        if owner is None and self.owners is not None and len(self.owners) == 1:
            (owner,) = self.owners
        wrong = [
            FieldError(f"/{name}", f"not one of the {name}s that this key is restricted to")
            for name, value, names in (("project", project, self.projects), ("owner", owner, self.owners))
            if names is not None and value not in names
        ]
        if wrong:
            detail = "This key is restricted to other projects or owners; nothing was stored."
            raise Forbidden("key_restricted", detail, fields=wrong)
        return owner


@dataclass(frozen=True, slots=True)
class Reach:
    """The projects and owners of a query across conversations: None for all, empty for none."""

    projects: tuple[str, ...] | None
    owners: tuple[str, ...] | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be found."""
        return () in {self.projects, self.owners}

    def single(self) -> tuple[str | None, str | None]:
        """Return the only project and owner, for searches of one scope. Raises Invalid if there are several."""
        several = [
            FieldError(f"/{name}", f"name one of the {len(names)} that this key is restricted to")
            for name, names in (("project", self.projects), ("owner", self.owners))
            if names is not None and len(names) > 1
        ]
        if several:
            detail = "This key is restricted to several projects or owners; a search is for one of them."
            raise Invalid("invalid_request", detail, fields=several)
        return next(iter(self.projects or ()), None), next(iter(self.owners or ()), None)


def restriction_of(projects: Sequence[str] | None, owners: Sequence[str] | None) -> Restriction | None:
    """Return the restriction to these projects and owners, each of them None for all; None if there is none."""
    if projects is None and owners is None:
        return None
    return Restriction(None if projects is None else frozenset(projects), None if owners is None else frozenset(owners))


def reach_of(restriction: Restriction | None, *, project: str | None, owner: str | None) -> Reach:
    """Return the reach of a query with these filters, each of them None for all, within a restriction."""
    if restriction is None:
        return Reach(None if project is None else (project,), None if owner is None else (owner,))
    return Reach(_narrowed(project, restriction.projects), _narrowed(owner, restriction.owners))


def _narrowed(name: str | None, allowed: frozenset[str] | None) -> tuple[str, ...] | None:
    if name is None:
        return None if allowed is None else tuple(sorted(allowed))
    return (name,) if allowed is None or name in allowed else ()


def require_scopes(restriction: Restriction | None, scopes: Sequence[Scope]) -> None:
    """Raise Invalid for a restricted key with a scope that reaches beyond its restriction."""
    if restriction is not None and not {Scope.READ, Scope.WRITE}.issuperset(scopes):
        detail = "A key that is restricted to projects or owners has only the scopes read and write."
        problem = FieldError("/scopes", "admin and operator reach all projects and owners")
        raise Invalid("invalid_request", detail, fields=[problem])
