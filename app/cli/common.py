"""Shared code of commands: settings, the admin key, the tenant, error output."""

import os
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from app.core.ids import TenantId
    from app.settings import Settings


def fail(sentence: str) -> NoReturn:
    """Print one sentence on standard error and exit with code 1."""
    typer.echo(f"turnkeep: {sentence}", err=True)
    raise SystemExit(1)


def read_settings(**given: object) -> "Settings":
    """Return the settings of the environment and the given ones; print each wrong one and exit with code 1."""
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings.model_validate(given)
    except ValidationError as error:  # values may be secrets
        for wrong in error.errors(include_input=False, include_url=False, include_context=False):
            group_and_name = [str(part) for part in wrong["loc"][:2]]
            name = group_and_name[1] if len(group_and_name) > 1 else ""  # none: a contradiction between settings
            variable = name if name.isupper() else f"TURNKEEP_{name.upper()}" if name else "settings"
            typer.echo(f"turnkeep: {variable}: {wrong['msg']}", err=True)
        raise SystemExit(1) from None


def quiet_settings(**given: object) -> "Settings":
    """Return the settings, and log from warnings upwards."""
    from app.core.telemetry import configure_logging

    settings = read_settings(**given)
    configure_logging(settings.telemetry.model_copy(update={"log_level": "warning"}))
    return settings


def admin_key(settings: "Settings") -> str | None:
    """Return the administrator's key of this installation, if its setting or its file exists."""
    if settings.tenancy.bootstrap_key is not None:
        return settings.tenancy.bootstrap_key.get_secret_value()
    path = settings.admin_key_path
    return path.read_text().strip() if path.exists() else None


def running_server(settings: "Settings") -> tuple[str, str]:
    """Return the URL of the server for client commands, and their key."""
    key = settings.server.api_key.get_secret_value() if settings.server.api_key else admin_key(settings)
    if key is None:
        fail("there is no key: set TURNKEEP_API_KEY, or run this in the folder of the server, with its data/admin-key.")
    host = "127.0.0.1" if settings.server.host in {"0.0.0.0", "::"} else settings.server.host  # noqa: S104 - compared, not bound
    host = f"[{host}]" if ":" in host else host
    return settings.server.url or f"http://{host}:{settings.server.port}", key


def tenant_named(settings: "Settings", text: str | None) -> "TenantId":
    """Return the tenant of `--tenant`; by default that of the admin key."""
    from app.core.ids import TenantId, parse_id
    from app.tenancy.key_text import parse_key

    if text is None:
        parsed = parse_key(admin_key(settings) or "")
        if parsed is None:
            fail("name the tenant with --tenant, or make one with --new-tenant.")
        return parsed.tenant_id
    try:
        return TenantId(parse_id(text))
    except ValueError:
        fail("--tenant is not an id.")


def use_one_blas_thread() -> None:
    """Let numpy compute in the calling thread, which is faster here. Takes effect before its first import."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
