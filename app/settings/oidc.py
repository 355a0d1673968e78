"""Settings of people's access tokens: the issuer (OpenID Connect), and what its claims mean here."""

from collections.abc import Mapping
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from app.settings.group import SettingsGroup

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. `none` and HMACs are never accepted: their key would be public."""

_SCOPES: Final = frozenset({"read", "write", "admin"})


def _texts(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(dict.fromkeys(text for item in value.split(",") if (text := item.strip()))) or None


def _pairs(text: object) -> object:
    """Return the pairs in `name=value, name=value`. A name may have `=`, a value not."""
    if not isinstance(text, str):
        return text
    pairs: dict[str, str] = {}
    for item in text.split(","):
        if item.strip():
            name, separator, value = item.rpartition("=")
            if not separator or not name.strip() or not value.strip():
                raise ValueError("pairs are like name=value, with commas between them")
            pairs[name.strip()] = value.strip()
    return pairs


def _algorithms(value: tuple[str, ...] | None) -> tuple[str, ...]:
    wrong = set(value or ()) - set(ALGORITHMS)
    if wrong or not value:
        raise ValueError(f"the algorithms are some of {', '.join(ALGORITHMS)}")
    return value


def _role_scopes(value: Mapping[str, str]) -> Mapping[str, str]:
    for scopes in value.values():
        if not _SCOPES.issuperset(scopes.split("+")):
            raise ValueError("the scopes of a role are read, write and admin, with + between them")
    return value


_Texts = Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_texts)]
_Algorithms = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_texts), AfterValidator(_algorithms)]
_Pairs = Annotated[Mapping[str, str], NoDecode, BeforeValidator(_pairs)]
_RoleScopes = Annotated[_Pairs, AfterValidator(_role_scopes)]


class OidcSettings(SettingsGroup):
    """The issuer of access tokens, and the claims that name tenant, scopes, projects, owner and agent.

    The name of a claim may be a path: `realm_access.roles` is the member `roles` of the claim `realm_access`.
    """

    oidc_issuer: str | None = Field(
        default=None, description="Issuer of access tokens (OpenID Connect). Without one, only keys are accepted."
    )
    oidc_audience: _Texts = Field(default=None, description="Values of `aud`, one of which a token must have.")
    oidc_algorithms: _Algorithms = Field(
        default=("RS256", "ES256", "EdDSA"), description="Signature algorithms that are accepted."
    )
    oidc_tenant: str | None = Field(default=None, description="Tenant of every token, by its id.")
    oidc_tenant_claim: str | None = Field(default=None, description="Claim that names the tenant.")
    oidc_tenants: _Pairs = Field(
        default={}, description="Names in the tenant claim, each with the id of its tenant: acme=01M7…, beta=01M8…"
    )
    oidc_roles_claim: str = Field(
        default="realm_access.roles", description="Claim with the roles of a person, or with scopes (`scope`)."
    )
    oidc_roles: _RoleScopes = Field(
        default={}, description="Roles, each with its scopes: memory-user=read+write, memory-admin=read+write+admin"
    )
    oidc_projects_claim: str | None = Field(
        default=None, description="Claim with the projects that a person is restricted to."
    )
    oidc_owners_claim: str | None = Field(
        default=None, description="Claim with the owners that a person is restricted to, such as `sub`."
    )
    oidc_agent_claim: str | None = Field(default=None, description="Claim with the agent of a program.")
    oidc_allow_http: bool = Field(
        default=False, description="Whether the issuer may be reached without TLS; for trials on one machine."
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.oidc_issuer is None:
            return self
        parts = urlsplit(self.oidc_issuer)
        if not parts.hostname or parts.query or parts.fragment or parts.username is not None:
            raise ValueError("TURNKEEP_OIDC_ISSUER is an absolute URL without login, query and fragment")
        if parts.scheme != "https" and not (parts.scheme == "http" and self.oidc_allow_http):
            raise ValueError("TURNKEEP_OIDC_ISSUER is an https URL, or http with TURNKEEP_OIDC_ALLOW_HTTP=true")
        if not self.oidc_audience:
            raise ValueError("TURNKEEP_OIDC_AUDIENCE is needed: without it, tokens for other programs would be valid")
        if (self.oidc_tenant is None) == (self.oidc_tenant_claim is None):
            raise ValueError("give one of TURNKEEP_OIDC_TENANT and TURNKEEP_OIDC_TENANT_CLAIM")
        if not self.oidc_roles:
            raise ValueError("TURNKEEP_OIDC_ROLES is needed: it gives the scopes of roles")
        return self
