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


def read_settings(**overrides: object) -> "Settings":
    """Return the settings of the environment and the given ones; print each wrong one and exit with code 1."""
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings.model_validate(overrides)
    except ValidationError as error:  # values may be secrets
        from app.core.validation.invalid import reason_of

        for wrong in error.errors(include_input=False, include_url=False):
            group_and_name = [str(part) for part in wrong["loc"][:2]]
            name = group_and_name[1] if len(group_and_name) > 1 else ""  # none: a contradiction between settings
            variable = name if name.isupper() else f"TURNKEEP_{name.upper()}" if name else "settings"
            is_ours = wrong["type"] in {"value_error", "assertion_error"}
            reason = str(wrong.get("ctx", {}).get("error")) if is_ours else reason_of(wrong)
            typer.echo(f"turnkeep: {variable}: {reason}", err=True)
        raise SystemExit(1) from None


def quiet_settings(**overrides: object) -> "Settings":
    """Return the settings, and log from warnings upwards."""
    from app.core.telemetry import configure_logging

    settings = read_settings(**overrides)
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
    return server_url(settings), key


def server_url(settings: "Settings") -> str:
    """Return the URL of the server for client commands."""
    host = "127.0.0.1" if settings.server.host in {"0.0.0.0", "::"} else settings.server.host  # noqa: S104 - compared, not bound
    host = f"[{host}]" if ":" in host else host
    return settings.server.url or f"http://{host}:{settings.server.port}"


def tenant_named(settings: "Settings", text: str | None) -> "TenantId":
    """Return the tenant of `--tenant`; by default that of the admin key."""
    from app.core.ids import TenantId, parse_id

    if text is None:
        tenant_id = admin_tenant(settings)
        if tenant_id is None:
            fail("name the tenant with --tenant: `turnkeep keys list` shows the ids of tenants.")
        return tenant_id
    try:
        return TenantId(parse_id(text))
    except ValueError:
        fail("--tenant is not an id: `turnkeep keys list` shows the ids of tenants.")


def admin_tenant(settings: "Settings") -> "TenantId | None":
    """Return the tenant of the administrator's key; None without a key."""
    from app.tenancy.key_text import parse_key

    parsed = parse_key(admin_key(settings) or "")
    return None if parsed is None else parsed.tenant_id


def use_one_blas_thread() -> None:
    """Let numpy compute in the calling thread, which is faster here. Takes effect before its first import."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
