"""`migrate`, `doctor` and `reembed`: commands for the database of an installation."""

import asyncio
from typing import Annotated

import typer

from app.cli.common import quiet_settings, read_settings, tenant_named

commands = typer.Typer()


@commands.command()
def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Only print the migrations as SQL.")] = False,  # noqa: FBT002
    force: Annotated[bool, typer.Option("--force", help="Even while incompatible replicas run.")] = False,  # noqa: FBT002
) -> None:
    """Bring the database to this release's schema."""
    from app.core.database import schema
    from app.core.database.revisions import SchemaVersion, known_revisions
    from app.core.database.servers import Server
    from app.core.telemetry import configure_logging

    if sql:
        schema.print_migration_sql()
        return
    settings = read_settings()
    configure_logging(settings.telemetry)

    async def run() -> SchemaVersion | None:
        server = Server(settings.database)
        try:
            await server.start()
            await server.migrate(force=force)
            return await server.current_version()
        finally:
            await server.stop()

    version = asyncio.run(run())
    revision = "none" if version is None else version.revision
    newer = "" if revision in known_revisions() else ", of a newer release; this one can run on it"
    typer.echo(f"The schema is at {revision}{newer}.", err=True)


@commands.command()
def doctor(
    invariants: Annotated[bool, typer.Option("--invariants", help="Check the data instead.")] = False,  # noqa: FBT002
    tenant: Annotated[str | None, typer.Option(help="With --invariants: only this tenant's data.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --invariants: only so many newest conversations of each tenant.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,  # noqa: FBT002
) -> None:
    """Check the environment of Turnkeep, or its data. Changes nothing; the exit code is 1 if a check fails."""
    settings = quiet_settings()

    from app.cli.screens import check_data, check_place

    if invariants:
        tenant_id = None if tenant is None else tenant_named(settings, tenant)
        healthy = check_data(settings, tenant_id, limit, as_json=as_json)
    else:
        healthy = check_place(settings, as_json=as_json)
    if not healthy:
        raise SystemExit(1)


@commands.command()
def reembed(
    query: Annotated[
        list[str] | None, typer.Option(help="A query to compare with; may be repeated. Default: turns of users.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant whose turns are compared; default: the admin key's.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Switch without asking.")] = False,  # noqa: FBT002
    force: Annotated[bool, typer.Option("--force", help="Switch even where vectors are missing.")] = False,  # noqa: FBT002
    status: Annotated[bool, typer.Option("--status", help="Only show the spaces.")] = False,  # noqa: FBT002
    rollback: Annotated[bool, typer.Option("--rollback", help="Search the previous space again.")] = False,  # noqa: FBT002
    drop: Annotated[int | None, typer.Option(min=1, help="Delete this space's vectors.")] = None,
) -> None:
    """Move to the embedder of TURNKEEP_NEXT_EMBEDDER: fill its space, compare, switch. May be stopped and run again."""
    settings = quiet_settings()

    from app.core.jobs import INSTALLATION
    from app.worker.reembed_screen import ReembedOptions, move

    options = ReembedOptions(
        queries=query or [], yes=yes, force=force, status=status, rollback=rollback, drop=drop, ask=typer.confirm
    )
    of_none = status or rollback or drop is not None
    asyncio.run(move(settings, INSTALLATION if of_none else tenant_named(settings, tenant), options))
