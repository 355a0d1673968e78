"""`audit`: verify the hash chains of the audit, and seal entries."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from app.cli.common import fail, quiet_settings, tenant_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.audit.schemas import AuditVerification
    from app.audit.service import Known
    from app.core.ids import TenantId

commands = typer.Typer(help="The audit: who did what, and when.", no_args_is_help=True, rich_markup_mode=None)


@commands.command("verify")
def verify(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's entries.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Output of an earlier --json: its chains must still be there, unchanged.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the end of each chain.")] = False,
) -> None:
    """Check the hash chains of the audit. Changes nothing; the exit code is 1 if a chain is broken."""
    settings = quiet_settings()
    tenant_id = None if tenant is None else tenant_named(settings, tenant)
    trusted: Known = {} if against is None else _read_known(against)

    from app.audit.service import verify_audit
    from app.core.ids import format_id
    from app.foundation import open_foundation

    async def run() -> "Mapping[TenantId, AuditVerification]":
        async with open_foundation(settings, migrate=False) as base:
            return await verify_audit(base.ops, tenant_id, trusted=trusted)

    results = {format_id(audited_id): result for audited_id, result in asyncio.run(run()).items()}
    typer.echo(json.dumps(_as_json(results), indent=2) if as_json else _as_text(results))
    if not all(result.valid for result in results.values()):
        raise SystemExit(1)


def _as_text(results: "Mapping[str, AuditVerification]") -> str:
    lines: list[str] = []
    for tenant_id, result in results.items():
        place = ""
        if (first_break := result.first_break) is not None:
            entry = "" if first_break.number is None else f", entry {first_break.number}"
            place = f"BROKEN: {first_break.kind} on {first_break.day}{entry}; "
        lines.append(
            f"{tenant_id}  {place}{result.entries} entries verified in"
            f" {len(result.chains) - result.deleted_days} days, {result.deleted_days} days deleted by retention,"
            f" {result.unsealed} entries not sealed yet"
        )
    return "\n".join(lines) or "There are no audit entries."


def _as_json(results: "Mapping[str, AuditVerification]") -> list[dict[str, object]]:
    names = ("entries", "unsealed", "deleted_days", "first_break", "chains")
    shown = {tenant_id: result.model_dump(mode="json") for tenant_id, result in results.items()}
    return [{"tenant_id": tenant_id, **{name: members[name] for name in names}} for tenant_id, members in shown.items()]


def _read_known(path: Path) -> "Known":
    """Return the ends of chains of an earlier output."""
    from datetime import date

    from app.audit.service import Checkpoint
    from app.core.ids import TenantId, parse_id

    try:
        reports = cast("list[dict[str, object]]", json.loads(path.read_text()))
        return {
            (TenantId(parse_id(str(report["tenant_id"]))), date.fromisoformat(str(chain["day"]))): Checkpoint(
                int(str(chain["entries"])), bytes.fromhex(str(chain["hash"]))
            )
            for report in reports
            for chain in cast("list[dict[str, object]]", report["chains"])
        }
    except (OSError, ValueError, KeyError, TypeError):
        fail("--against is not the output of `turnkeep audit verify --json`.")
