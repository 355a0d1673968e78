"""`keys`: create, list, rotate and revoke API keys."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.common import admin_tenant, fail, quiet_settings, tenant_named
from app.tenancy.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from app.core.ids import KeyId, TenantId
    from app.foundation import Foundation
    from app.settings import Settings

DEFAULT_SCOPES: Final = (Scope.READ, Scope.WRITE)
_KEY_COLUMN = 53
_WIDE = 240

commands = typer.Typer(help="API keys.", no_args_is_help=True, rich_markup_mode=None)


def _open(settings: "Settings") -> "AbstractAsyncContextManager[Foundation]":
    from app.core.database.servers import require_data

    require_data(settings.database)

    from app.foundation import open_foundation

    return open_foundation(settings, migrate=False)


@commands.command("generate")
def generate() -> None:
    """Print a fresh key, for TURNKEEP_BOOTSTRAP_KEY. Nothing is stored."""
    from app.tenancy.key_text import generate_key

    typer.echo(str(generate_key()))


@commands.command("create")
def create(  # noqa: PLR0917 - each option of a command is a parameter
    name: Annotated[str, typer.Option(help="Name of the key.")] = "key",
    scope: Annotated[list[Scope] | None, typer.Option(help="A scope; may be repeated. Default: read, write.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant's id; default: the only one.")] = None,
    new_tenant: Annotated[str | None, typer.Option(help="Create a tenant of this name, with a key for it.")] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="Days until the key expires.")] = None,
    agent: Annotated[str | None, typer.Option(help="Agent of the key; default: the one named in X-Agent-Id.")] = None,
    long_term: Annotated[bool, typer.Option(help="Whether the key has long-term memory.")] = True,
    project: Annotated[list[str] | None, typer.Option(help="Restrict to this project; may be repeated.")] = None,
    owner: Annotated[list[str] | None, typer.Option(help="Restrict to this owner; may be repeated.")] = None,
) -> None:
    """Create a key and print it, once."""
    settings = quiet_settings()

    from app.tenancy.schemas import restriction_of

    expires_at = None if expires_days is None else datetime.now(UTC) + timedelta(days=expires_days)

    async def run() -> str:
        async with _open(settings) as base:
            if new_tenant is not None:
                return str(await base.tenancy.create_tenant(new_tenant))
            scopes = scope or DEFAULT_SCOPES
            tenant_id = admin_tenant(settings) if tenant is None else tenant_named(settings, tenant)
            tenant_id = tenant_id or await base.tenancy.only_tenant()
            if tenant_id is None:
                fail(
                    "there are several tenants, or none: name one with --tenant (`turnkeep keys list` shows their"
                    " ids), or make one with --new-tenant."
                )
            key = await base.tenancy.create_key(
                tenant_id,
                name=name,
                scopes=scopes,
                expires_at=expires_at,
                agent_id=agent,
                long_term_enabled=long_term,
                restriction=restriction_of(project, owner),
            )
            return str(key)

    typer.echo(asyncio.run(run()))


@commands.command("list")
def list_keys(tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys.")] = None) -> None:
    """List keys, newest first, without their secrets. The last column has the ids of the tenant and of the key."""
    settings = quiet_settings()
    tenant_id = None if tenant is None else tenant_named(settings, tenant)

    from rich.console import Console
    from rich.table import Table

    from app.core.times import format_time

    async def run() -> Table:
        table = Table("name", "scopes", "restricted to", "created", "last used", "expires", "state")
        # never cut, whatever the width: `keys revoke` takes this value
        table.add_column("tenant/key", no_wrap=True, min_width=_KEY_COLUMN)
        async with _open(settings) as base:
            for key in await base.tenancy.list_keys(tenant_id):
                table.add_row(
                    key.name,
                    " ".join(key.scopes),
                    _restriction(key.projects, key.owners),
                    format_time(key.created_at),
                    format_time(key.last_used_at) if key.last_used_at else "never",
                    format_time(key.expires_at) if key.expires_at else "never",
                    key.state,
                    f"{key.tenant_id}/{key.id}",
                )
        return table

    # a pipe has no width: print wide lines
    Console(width=None if sys.stdout.isatty() else _WIDE).print(asyncio.run(run()))


def _restriction(projects: "Sequence[str] | None", owners: "Sequence[str] | None") -> str:
    parts = (("projects", projects), ("owners", owners))
    return "; ".join(f"{name}: {', '.join(names)}" for name, names in parts if names is not None) or "-"


def _key_named(text: str) -> "tuple[TenantId, KeyId]":
    """Return the tenant and the id of a key, which is named by its text or by both ids."""
    from app.core.ids import KeyId, TenantId, parse_id
    from app.tenancy.key_text import parse_key

    parsed = parse_key(text)
    if parsed is not None:
        return parsed.tenant_id, parsed.key_id
    try:
        tenant_text, key_text = text.split("/")
        return TenantId(parse_id(tenant_text)), KeyId(parse_id(key_text))
    except ValueError:
        fail("give the key itself, or TENANT_ID/KEY_ID as `turnkeep keys list` shows them.")


_KeyArgument = Annotated[str, typer.Argument(help="The key, or TENANT_ID/KEY_ID as `keys list` shows them.")]


@commands.command("rotate")
def rotate(
    key: _KeyArgument,
    grace_s: Annotated[int, typer.Option(min=0, max=86_400, help="Seconds for which the old secret stays valid.")] = 0,
) -> None:
    """Give a key a new secret, and print the key, once."""
    settings = quiet_settings()
    tenant_id, key_id = _key_named(key)

    async def run() -> str:
        async with _open(settings) as base:
            return str(await base.tenancy.rotate_key(tenant_id, key_id=key_id, grace_s=grace_s))

    typer.echo(asyncio.run(run()))


@commands.command("revoke")
def revoke(key: _KeyArgument) -> None:
    """Revoke a key permanently."""
    settings = quiet_settings()
    tenant_id, key_id = _key_named(key)

    async def run() -> None:
        async with _open(settings) as base:
            await base.tenancy.revoke_key(tenant_id, key_id=key_id)

    asyncio.run(run())
    typer.echo("Revoked.", err=True)
