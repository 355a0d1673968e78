"""`migrate`, `doctor`, `backup`, `restore` and `reembed`: commands for the database of an installation."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.common import fail, quiet_settings, read_settings, tenant_named, use_one_blas_thread

if TYPE_CHECKING:
    from app.settings import Settings

commands = typer.Typer()


@commands.command()
def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Only print the migrations as SQL.")] = False,
    citus: Annotated[bool, typer.Option("--citus", help="Then distribute the tables by tenant.")] = False,
) -> None:
    """Bring the database to the schema of this build."""
    from app.core.database import schema
    from app.core.database.servers import Server
    from app.core.telemetry import configure_logging

    if sql:
        schema.print_migration_sql()
        return
    settings = read_settings()
    configure_logging(settings.telemetry)

    async def run() -> str | None:
        server = Server(settings.database)
        try:
            await server.start()
            await server.migrate()
            if citus:
                tables = await server.distribute()
                typer.echo(f"Distributed {len(tables)} tables." if tables else "All tables are distributed.", err=True)
            return await server.recorded_revision()
        finally:
            await server.stop()

    typer.echo(f"The schema is at {asyncio.run(run())}.", err=True)


@commands.command()
def doctor(
    invariants: Annotated[bool, typer.Option("--invariants", help="Check the data instead.")] = False,
    tenant: Annotated[str | None, typer.Option(help="With --invariants: only this tenant's data.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --invariants: only so many newest conversations of each tenant.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
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
def backup(file: Annotated[Path, typer.Argument(help="A new file, which pg_restore can read.")]) -> None:
    """Write the embedded database into a file. The service can run meanwhile."""
    settings = _embedded_settings("pg_dump")

    from app.core.database.backups import back_up
    from app.core.database.servers import require_data

    require_data(settings.database)
    try:
        asyncio.run(back_up(settings.database, file))
    except OSError as error:
        fail(f"{file} cannot be written ({error.strerror}).")
    typer.echo(f"turnkeep: {file} has {file.stat().st_size} bytes.", err=True)


@commands.command("restore")
def restore_backup(
    file: Annotated[Path, typer.Argument(help="A file of `turnkeep backup`.")],
    replace: Annotated[bool, typer.Option("--replace", help="Delete the database that is there.")] = False,
) -> None:
    """Restore the embedded database from a file, while the service does not run."""
    settings = _embedded_settings("pg_restore")

    from app.core.database.backups import find_obstacle, restore

    if not file.is_file():
        fail(f"there is no file {file}.")

    async def run() -> None:
        obstacle = await find_obstacle(settings.database)
        if obstacle is not None and not (replace and "--replace" in obstacle):
            fail(f"{obstacle}.")
        await restore(settings.database, file)

    asyncio.run(run())
    typer.echo("turnkeep: restored. The next start brings the schema up to date.", err=True)


def _embedded_settings(program: str) -> "Settings":
    settings = quiet_settings()
    if settings.database.database_url is not None:
        fail(f"this is for the embedded Postgres. Use {program} with your own: see docs/guides/backup.md.")
    return settings


@commands.command()
def reembed(
    query: Annotated[
        list[str] | None, typer.Option(help="A query to compare with; may be repeated. Default: turns of users.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant whose turns are compared; default: the admin key's.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Switch without asking.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Switch even where vectors are missing.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only show the spaces.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Search the previous space again.")] = False,
    drop: Annotated[int | None, typer.Option(min=1, help="Delete this space's vectors.")] = None,
) -> None:
    """Move to the embedder of TURNKEEP_NEXT_EMBEDDER: fill its space, compare, switch. May be stopped and run again."""
    settings = quiet_settings()
    use_one_blas_thread()

    from app.core.jobs import INSTALLATION
    from app.worker.reembed_screen import ReembedOptions, move

    options = ReembedOptions(
        queries=query or [], yes=yes, force=force, status=status, rollback=rollback, drop=drop, ask=typer.confirm
    )
    of_none = status or rollback or drop is not None
    asyncio.run(move(settings, INSTALLATION if of_none else tenant_named(settings, tenant), options))
