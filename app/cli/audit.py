"""`audit`: verify the hash chains of the audit, and seal entries."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from app.cli.common import fail, quiet_settings, tenant_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.audit.service import AuditReport, Known

commands = typer.Typer(help="The audit: who did what, and when.", no_args_is_help=True, rich_markup_mode=None)


@commands.command("verify")
def verify(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's entries.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Output of an earlier --json: its chains must still be there, unchanged.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the end of each chain.")] = False,  # noqa: FBT002
) -> None:
    """Check the hash chains of the audit. Changes nothing; the exit code is 1 if a chain is broken."""
    settings = quiet_settings()
    tenant_id = None if tenant is None else tenant_named(settings, tenant)
    trusted: Known = {} if against is None else _read_known(against)

    from app.audit.service import verify_audit
    from app.foundation import open_foundation

    async def run() -> "list[AuditReport]":
        async with open_foundation(settings, migrate=False) as base:
            return await verify_audit(base.ops, tenant_id, trusted=trusted)

    reports = asyncio.run(run())
    typer.echo(json.dumps(_as_json(reports), indent=2) if as_json else _as_text(reports))
    if any(report.first_break is not None for report in reports):
        raise SystemExit(1)


def _as_text(reports: "Sequence[AuditReport]") -> str:
    from app.core.ids import format_id

    lines: list[str] = []
    for report in reports:
        first_break = report.first_break
        place = ""
        if first_break is not None:
            entry = "" if first_break.number is None else f", entry {first_break.number}"
            place = f"BROKEN: {first_break.kind} on {first_break.day}{entry}; "
        lines.append(
            f"{format_id(report.tenant_id)}  {place}{report.entries} entries verified in"
            f" {len(report.chain_ends) - report.deleted_days} days, {report.deleted_days} days deleted by retention,"
            f" {report.unsealed} entries not sealed yet"
        )
    return "\n".join(lines) or "There are no audit entries."


def _as_json(reports: "Sequence[AuditReport]") -> list[dict[str, object]]:
    from app.core.ids import format_id

    return [
        {
            "tenant_id": format_id(report.tenant_id),
            "entries": report.entries,
            "unsealed": report.unsealed,
            "deleted_days": report.deleted_days,
            "first_break": report.first_break
            and {**asdict(report.first_break), "day": report.first_break.day.isoformat()},
            "chains": [
                {"day": end.day.isoformat(), "entries": end.entries, "hash": end.hash.hex()}
                for end in report.chain_ends
            ],
        }
        for report in reports
    ]


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
