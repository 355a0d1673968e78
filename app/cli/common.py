"""What several commands share: settings, the admin key, the tenant, how a refusal is shown."""

from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from app.core.ids import TenantId
    from app.settings import Settings


def fail(sentence: str) -> NoReturn:
    """Show one sentence on standard error and end with exit code 1."""
    typer.echo(f"turnkeep: {sentence}", err=True)
    raise SystemExit(1)


def read_settings(**given: object) -> "Settings":
    """The settings of the environment and those given; each wrong one is a line on standard error, and ends it all."""
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings.model_validate(given)
    except ValidationError as error:  # values may be secrets
        for wrong in error.errors(include_input=False, include_url=False, include_context=False):
            name = str(wrong["loc"][0]) if wrong["loc"] else "a setting"
            variable = name if name.isupper() else f"TURNKEEP_{name.upper()}"
            typer.echo(f"turnkeep: {variable}: {wrong['msg']}", err=True)
        raise SystemExit(1) from None


def quiet_settings(**given: object) -> "Settings":
    """The settings, with logging from warnings upwards."""
    from app.core.telemetry import configure_logging

    settings = read_settings(**given)
    configure_logging(settings.model_copy(update={"log_level": "warning"}))
    return settings


def admin_key(settings: "Settings") -> str | None:
    """The administrator's key of this installation, where its setting or its file is at hand."""
    if settings.bootstrap_key is not None:
        return settings.bootstrap_key.get_secret_value()
    path = settings.admin_key_path
    return path.read_text().strip() if path.exists() else None


def tenant_named(settings: "Settings", text: str | None) -> "TenantId":
    """The tenant of `--tenant`; without one, that of the admin key."""
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
