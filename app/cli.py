"""The command line: each command calls one function."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from app.container import Container, open_container, open_foundation
from app.core import schema
from app.core.errors import AppError, Unavailable
from app.core.ids import KeyId, TenantId, format_id, parse_id
from app.core.jobs import INSTALLATION
from app.core.revisions import SchemaVersion, known_revisions
from app.core.servers import Server
from app.core.telemetry import configure_logging
from app.core.times import format_time
from app.main import create_app, openapi_document
from app.mcp.bridge import Target as BridgeTarget
from app.mcp.bridge import client_configuration, serve_stdio
from app.operators.schemas import Level
from app.operators.service import check_installation, examine
from app.routers.asyncapi import asyncapi_document
from app.routers.protocol import protocols
from app.settings import Settings
from app.tail.connection import Target
from app.tail.service import tail
from app.tenancy.first_key import admin_key_path
from app.tenancy.keys import generate_key, parse_key
from app.tenancy.schemas import Scope
from app.worker.handlers import make_worker
from app.worker.reembed_screen import Wanted, move

_POLL_S = 0.02
_KEY_COLUMN = 53
_WIDE = 240

cli = typer.Typer(
    help="Turnkeep: keeps conversations, builds context.", no_args_is_help=True, pretty_exceptions_enable=False
)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
cli.add_typer(keys, name="keys")


def main() -> None:
    """Run the command line; what is refused on purpose is one sentence and exit code 1."""
    try:
        cli()
    except AppError as error:
        _fail(error.detail)
    except ValidationError as error:  # only settings are validated before anything runs; values may be secrets
        for wrong in error.errors(include_input=False, include_url=False, include_context=False):
            name = str(wrong["loc"][0]) if wrong["loc"] else "a setting"
            typer.echo(f"turnkeep: {_environment_name(name)}: {wrong['msg']}", err=True)
        raise SystemExit(1) from None


def _environment_name(setting: str) -> str:
    return setting if setting.isupper() else f"TURNKEEP_{setting.upper()}"


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"turnkeep: {sentence}", err=True)
    raise SystemExit(1)


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: TURNKEEP_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; default: TURNKEEP_PORT.")
    ] = None,
) -> None:
    """Start the service: on the embedded Postgres unless TURNKEEP_DATABASE_URL names one."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = Settings(**given)  # pyright: ignore[reportArgumentType] - each is of its own type
    configure_logging(settings)
    application = create_app(settings)
    http, socket_protocol = protocols(stall_s=settings.live_stall_s, body_timeout_s=settings.body_timeout_s)
    server = _Server(
        uvicorn.Config(
            application,
            host=settings.host,
            port=settings.port,
            http=http,
            ws=socket_protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            ws_max_size=settings.live_frame_bytes,
            ws_ping_interval=settings.live_heartbeat_s,
            ws_ping_timeout=settings.live_stall_s,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=settings.graceful_shutdown_s,
        )
    )
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve(server, settings))
    if not server.started:
        failure: object = getattr(application.state, "start_failure", None)
        raise failure if isinstance(failure, AppError) else Unavailable("not_ready", "Turnkeep did not start.")


class _Server(uvicorn.Server):
    """A server that ends event streams when it is told to stop: they would not end by themselves."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let who follows connect elsewhere, then stop as always."""
        application = cast("FastAPI", self.config.app)
        container = cast("Container | None", getattr(application.state, "container", None))
        if container is not None:
            container.end_live()
        await super().shutdown(sockets)


async def _serve(server: uvicorn.Server, settings: Settings) -> None:
    # bound before anything starts, so that a taken port costs nothing and says so
    with ExitStack() as stack:
        listening = stack.enter_context(_bind(settings.host, settings.port, "--port or TURNKEEP_PORT"))
        sockets = [listening]
        if settings.metrics_port is not None:
            sockets.append(stack.enter_context(_bind(settings.host, settings.metrics_port, "TURNKEEP_METRICS_PORT")))
        serving = asyncio.create_task(_serve_until_stopped(server, sockets))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn tells in no other way
            await asyncio.sleep(_POLL_S)
        if server.started:
            _say_where(listening, settings)
        await serving


async def _serve_until_stopped(server: uvicorn.Server, listening: list[socket.socket]) -> None:
    # uvicorn leaves a failed start by SystemExit, which would end the loop before anything is closed
    with suppress(SystemExit):
        await server.serve(sockets=listening)


def _bind(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named because asyncio looks at it before it turns off Nagle's delay, 40 ms on every answer
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(
            "port_taken",
            f"{host} port {port} cannot be listened on ({error.strerror}): choose another with {setting}.",
        ) from error
    return listening


def _say_where(listening: socket.socket, settings: Settings) -> None:
    port = listening.getsockname()[1]
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - compared, not bound
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    key_path = admin_key_path(settings)
    if settings.bootstrap_key is not None:
        key = "the one in TURNKEEP_BOOTSTRAP_KEY"
    elif key_path.exists():
        key = f"{key_path.read_text().strip()}   (kept in {key_path})"
    else:
        key = "made earlier; `turnkeep keys create` makes another"
    typer.echo(f"\n  Turnkeep   {url}\n  docs       {url}/docs\n  admin key  {key}\n", err=True)


@cli.command()
def worker() -> None:
    """Run jobs only, beside servers that have TURNKEEP_WORKER_IN_PROCESS=false or more work than they can do."""
    settings = Settings()
    configure_logging(settings)
    asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    async with open_container(settings) as container:
        working = make_worker(container)
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, working.stop)
        typer.echo("turnkeep: working.", err=True)
        await working.run()


@cli.command()
def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Only print the migrations as SQL.")] = False,  # noqa: FBT002
    force: Annotated[bool, typer.Option("--force", help="Even while replicas run that it breaks.")] = False,  # noqa: FBT002
) -> None:
    """Bring the database to this release's schema."""
    if sql:
        schema.print_migration_sql()
        return
    settings = Settings()
    configure_logging(settings)

    async def run() -> SchemaVersion | None:
        server = Server(settings)
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


@cli.command()
def doctor(
    invariants: Annotated[bool, typer.Option("--invariants", help="Check the data instead.")] = False,  # noqa: FBT002
    tenant: Annotated[str | None, typer.Option(help="With --invariants: only this tenant's data.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --invariants: so many of each tenant's newest conversations.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,  # noqa: FBT002
) -> None:
    """Check the place Turnkeep runs in, or its data. Changes nothing; the exit code is 1 where something is wrong."""
    settings = _quiet_settings()
    if invariants:
        tenant_id = None if tenant is None else _tenant(settings, tenant)
        healthy = _check_data(settings, tenant_id, limit, as_json=as_json)
    else:
        healthy = _check_place(settings, as_json=as_json)
    if not healthy:
        raise SystemExit(1)


def _check_place(settings: Settings, *, as_json: bool) -> bool:
    checks = asyncio.run(examine(settings, environment=os.environ))
    healthy = all(check.level is not Level.FAIL for check in checks)
    if as_json:
        sys.stdout.write(json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}) + "\n")
        return healthy
    table = Table("", "check", "found", "how to mend it")
    colours = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
    for check in checks:
        texts = [Text(text, overflow="fold") for text in (check.name, check.found, check.mend)]
        table.add_row(Text(check.level.value, style=colours[check.level]), *texts)
    Console().print(table)
    return healthy


def _check_data(settings: Settings, tenant_id: TenantId | None, limit: int | None, *, as_json: bool) -> bool:
    # progress goes to standard error, so that what is printed can be read by machines
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("conversations", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        faults = asyncio.run(check_installation(settings, tenant_id=tenant_id, limit=limit, progress=show))
    if as_json:
        found = [fault.as_json() for fault in faults]
        sys.stdout.write(json.dumps({"healthy": not faults, "faults": found}) + "\n")
        return not faults
    if not faults:
        typer.echo("Everything holds.")
        return True
    table = Table("fault", "tenant", "conversation", "turn or entry", "what")
    for fault in faults:
        ids = [format_id(one) if one else "" for one in (fault.tenant_id, fault.conversation_id, fault.object_id)]
        table.add_row(fault.code, *ids, Text(fault.detail, overflow="fold"))
    Console().print(table)
    return False


@cli.command()
def reembed(
    query: Annotated[
        list[str] | None, typer.Option(help="A query to compare by; may be repeated. Default: turns of users.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose turns to compare on; default: the admin key's.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Switch without asking.")] = False,  # noqa: FBT002
    force: Annotated[bool, typer.Option("--force", help="Switch even where vectors are missing.")] = False,  # noqa: FBT002
    status: Annotated[bool, typer.Option("--status", help="Only show the spaces.")] = False,  # noqa: FBT002
    rollback: Annotated[bool, typer.Option("--rollback", help="Search the space before again.")] = False,  # noqa: FBT002
    drop: Annotated[int | None, typer.Option(min=1, help="Delete this space's vectors.")] = None,
) -> None:
    """Move to the embedder of TURNKEEP_NEXT_EMBEDDER: fill its space, compare, switch. May be ended and run again."""
    settings = _quiet_settings()
    wanted = Wanted(
        queries=query or [], yes=yes, force=force, status=status, rollback=rollback, drop=drop, ask=typer.confirm
    )
    of_none = status or rollback or drop is not None
    asyncio.run(move(settings, INSTALLATION if of_none else _tenant(settings, tenant), wanted))


@cli.command("tail")
def tail_conversation(
    conversation: Annotated[str, typer.Argument(help="The conversation's id.")],
    url: Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")] = None,
    after_rev: Annotated[int | None, typer.Option(min=0, help="Begin with what changed after this rev.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print frames as lines of JSON.")] = False,  # noqa: FBT002
) -> None:
    """Show a conversation and what is written to it, as it is written. The key: TURNKEEP_API_KEY, or the admin key."""
    settings = Settings() if url is None else Settings(url=url)
    try:
        name = format_id(parse_id(conversation))
    except ValueError:
        _fail("give the id of a conversation.")
    running, key = _running_server(settings)
    asyncio.run(tail(Target(running, key, name), after_rev=after_rev, raw=raw))


@cli.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that asks, where the key is not an agent's own.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print what a client is told.")] = False,  # noqa: FBT002
) -> None:
    """Give a model the tools of a running server over standard input and output. The key: as for `tail`."""
    settings = Settings() if url is None else Settings(url=url)
    configure_logging(settings.model_copy(update={"log_level": "warning"}))
    target = BridgeTarget(*_running_server(settings), agent)
    if print_config:
        _print_document(client_configuration(target, command=str(Path(sys.argv[0]).absolute())))
    else:
        asyncio.run(serve_stdio(target))


def _running_server(settings: Settings) -> tuple[str, str]:
    """The URL of the server that commands speak to, and the key that they send."""
    key = settings.api_key.get_secret_value() if settings.api_key else _admin_key(settings)
    if key is None:
        _fail("there is no key: set TURNKEEP_API_KEY.")
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - compared, not bound
    host = f"[{host}]" if ":" in host else host
    return settings.url or f"http://{host}:{settings.port}", key


@cli.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    _print_document(openapi_document(create_app(Settings())))


@cli.command()
def asyncapi() -> None:
    """Print the AsyncAPI document: the WebSocket and the event streams."""
    _print_document(asyncapi_document(version("turnkeep")))


def _print_document(document: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


@keys.command("generate")
def generate() -> None:
    """Print a fresh key, for TURNKEEP_BOOTSTRAP_KEY. Nothing is stored."""
    typer.echo(str(generate_key()))


@keys.command("create")
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "key",
    scope: Annotated[list[Scope] | None, typer.Option(help="A scope; may be repeated. Default: read, write.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant's id; default: that of the admin key.")] = None,
    new_tenant: Annotated[str | None, typer.Option(help="Make a tenant of this name, with a key for it.")] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="Days until the key expires.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that asks with this key; default: who it says.")] = None,
    long_term: Annotated[bool, typer.Option(help="Whether the key has long-term memory.")] = True,  # noqa: FBT002
) -> None:
    """Make a key and print it, once."""
    settings = _quiet_settings()
    expires_at = None if expires_days is None else datetime.now(UTC) + timedelta(days=expires_days)

    async def run() -> str:
        async with open_foundation(settings, migrate=False) as base:
            if new_tenant is not None:
                return str((await base.tenancy.create_tenant(new_tenant))[1])
            scopes = scope or [Scope.READ, Scope.WRITE]
            tenant_id = _tenant(settings, tenant)
            made = await base.tenancy.create_key(
                tenant_id,
                name=name,
                scopes=scopes,
                expires_at=expires_at,
                agent_id=agent,
                long_term_enabled=long_term,
            )
            return str(made)

    typer.echo(asyncio.run(run()))


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys.")] = None,
) -> None:
    """List keys, newest first, without their secrets."""
    settings = _quiet_settings()
    tenant_id = None if tenant is None else _tenant(settings, tenant)

    async def run() -> Table:
        table = Table("name", "scopes", "created", "last used", "state")
        # whole, whatever the width: it is what `keys revoke` takes
        table.add_column("tenant/key", no_wrap=True, min_width=_KEY_COLUMN)
        async with open_foundation(settings, migrate=False) as base:
            for key in await base.tenancy.list_keys(tenant_id):
                expired = key.expires_at is not None and key.expires_at <= datetime.now(UTC)
                state = "revoked" if key.revoked_at else "expired" if expired else "valid"
                table.add_row(
                    key.name,
                    " ".join(key.scopes),
                    format_time(key.created_at),
                    format_time(key.last_used_at) if key.last_used_at else "never",
                    state,
                    f"{format_id(key.tenant_id)}/{format_id(key.key_id)}",
                )
        return table

    # a pipe has no width: nothing is cut for it
    Console(width=None if sys.stdout.isatty() else _WIDE).print(asyncio.run(run()))


@keys.command("revoke")
def revoke(key: Annotated[str, typer.Argument(help="The key, or TENANT_ID/KEY_ID as `keys list` shows them.")]) -> None:
    """Revoke a key for good."""
    settings = _quiet_settings()
    parsed = parse_key(key)
    if parsed is not None:
        tenant_id, key_id = parsed.tenant_id, parsed.key_id
    else:
        try:
            tenant_text, key_text = key.split("/")
            tenant_id, key_id = TenantId(parse_id(tenant_text)), KeyId(parse_id(key_text))
        except ValueError:
            _fail("give the key itself, or TENANT_ID/KEY_ID as `turnkeep keys list` shows them.")

    async def run() -> None:
        async with open_foundation(settings, migrate=False) as base:
            await base.tenancy.revoke_key(tenant_id, key_id=key_id)

    asyncio.run(run())
    typer.echo("Revoked.", err=True)


def _quiet_settings() -> Settings:
    settings = Settings()
    configure_logging(settings.model_copy(update={"log_level": "warning"}))
    return settings


def _admin_key(settings: Settings) -> str | None:
    if settings.bootstrap_key is not None:
        return settings.bootstrap_key.get_secret_value()
    path = admin_key_path(settings)
    return path.read_text().strip() if path.exists() else None


def _tenant(settings: Settings, text: str | None) -> TenantId:
    if text is None:
        parsed = parse_key(_admin_key(settings) or "")
        if parsed is None:
            _fail("name the tenant with --tenant, or make one with --new-tenant.")
        return parsed.tenant_id
    try:
        return TenantId(parse_id(text))
    except ValueError:
        _fail("--tenant is not an id.")


if __name__ == "__main__":
    main()
