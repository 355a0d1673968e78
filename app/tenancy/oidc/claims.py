"""The meaning of a verified access token's claims: tenant, subject, scopes, restriction and agent. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from app.core.errors import Unauthenticated
from app.core.ids import TenantId, parse_id
from app.formats.schemas import JsonObject
from app.settings.oidc import OidcSettings
from app.tenancy.restriction import MAX_RESTRICTED, Restriction
from app.tenancy.schemas import AGENT_PATTERN, MAX_AGENT_CHARACTERS
from app.tenancy.scopes import Scope

_MAX_SUBJECT: Final = 1024
_MAX_NAME: Final = 256
_LAST_SECOND: Final = 253_402_300_799


@dataclass(frozen=True, slots=True)
class Identity:
    """What a token says of its holder. `restriction`: None for all projects and owners."""

    tenant_id: TenantId
    subject: str
    scopes: frozenset[Scope]
    restriction: Restriction | None
    agent_id: str | None
    expires_at: datetime


def claim_at(claims: JsonObject, path: str) -> JsonValue:
    """Return the claim of this name, or the member at a path such as `realm_access.roles`; None if there is none."""
    if path in claims:  # a name may have dots itself, such as a URL
        return claims[path]
    value: JsonValue = claims
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def identity_of(claims: JsonObject, settings: OidcSettings) -> Identity:
    """Return the identity in the claims of a verified token.

    Raises Unauthenticated for a token without a known tenant, or with claims of another form than the settings say.
    """
    subject, expires_at = claims.get("sub"), claims.get("exp")
    if (
        not isinstance(subject, str)
        or not 0 < len(subject) <= _MAX_SUBJECT
        or not _is_storable(subject)
        or not isinstance(expires_at, int | float)
    ):
        raise _unusable("sub")
    scopes = _scopes(claims, settings)
    return Identity(
        tenant_id=_tenant(claims, settings),
        subject=subject,
        scopes=scopes,
        # as for keys: who administers the tenant reaches all of it
        restriction=None if Scope.ADMIN in scopes else _restriction(claims, settings),
        agent_id=_agent(claims, settings.oidc_agent_claim),
        expires_at=datetime.fromtimestamp(min(expires_at, _LAST_SECOND), UTC),
    )


def _tenant(claims: JsonObject, settings: OidcSettings) -> TenantId:
    name: JsonValue = settings.oidc_tenant
    if settings.oidc_tenant_claim is not None:
        named = _texts(claims, settings.oidc_tenant_claim)
        # several tenants in one token: it does not say which one is meant
        name = named[0] if len(named) == 1 else None
    if not isinstance(name, str):
        raise _unusable(settings.oidc_tenant_claim or "tenant")
    try:
        return TenantId(parse_id(settings.oidc_tenants.get(name, name)))
    except ValueError:
        raise _unusable(settings.oidc_tenant_claim or "tenant") from None


def _scopes(claims: JsonObject, settings: OidcSettings) -> frozenset[Scope]:
    named = claim_at(claims, settings.oidc_roles_claim)
    # `scope` is a text, names with spaces between them, of any length
    roles = named.split() if isinstance(named, str) else _texts(claims, settings.oidc_roles_claim)
    mapped = [settings.oidc_roles[role] for role in roles if role in settings.oidc_roles]
    return frozenset(Scope(scope) for scopes in mapped for scope in scopes.split("+"))


def _restriction(claims: JsonObject, settings: OidcSettings) -> Restriction | None:
    """Return the restriction. A token without a claim that the settings name reaches nothing."""
    projects, owners = (
        None if path is None else frozenset(_texts(claims, path))
        for path in (settings.oidc_projects_claim, settings.oidc_owners_claim)
    )
    if projects is None and owners is None:
        return None
    if max(len(projects or ()), len(owners or ())) > MAX_RESTRICTED:
        raise _unusable("projects or owners")
    return Restriction(projects, owners)


def _agent(claims: JsonObject, path: str | None) -> str | None:
    if path is None or claim_at(claims, path) in (None, []):
        return None
    named = _texts(claims, path)
    # a claim that is there and names no agent is refused: the caller would choose the agent
    (agent,) = named if len(named) == 1 else (None,)
    if agent is None or len(agent) > MAX_AGENT_CHARACTERS or re.fullmatch(AGENT_PATTERN, agent) is None:
        raise _unusable(path)
    return agent


def _texts(claims: JsonObject, path: str) -> list[str]:
    """Return the text or the texts of a claim. Raises Unauthenticated for a claim of another form."""
    value = claim_at(claims, path)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in listed if isinstance(text, str) and 0 < len(text) <= _MAX_NAME and _is_storable(text)]
    if len(texts) != len(listed) and not isinstance(value, str):
        raise _unusable(path)
    return texts


def _is_storable(text: str) -> bool:
    """Return whether the database can store a text: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _unusable(claim: str) -> Unauthenticated:
    detail = f"The access token is valid, but its claim {claim} does not say what this server needs."
    return Unauthenticated("token_unusable", detail)
