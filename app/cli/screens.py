"""Output of `doctor`: checks of the environment and faults in the data, as tables or JSON. Imported when it runs."""

import asyncio
import json
import os
import sys

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from app.core.ids import TenantId, format_id
from app.diagnostics.schemas import Level
from app.diagnostics.service import check_installation, examine
from app.settings import Settings


def check_place(settings: Settings, *, as_json: bool) -> bool:
    """Print the checks of the environment; return whether none failed."""
    checks = asyncio.run(examine(settings, environment=os.environ))
    healthy = all(check.level is not Level.FAIL for check in checks)
    if as_json:
        sys.stdout.write(json.dumps({"healthy": healthy, "checks": [check.as_json() for check in checks]}) + "\n")
        return healthy
    table = Table("", "check", "found", "remedy")
    colours = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
    for check in checks:
        texts = [Text(text, overflow="fold") for text in (check.name, check.found, check.remedy)]
        table.add_row(Text(check.level.value, style=colours[check.level]), *texts)
    Console().print(table)
    return healthy


def check_data(settings: Settings, tenant_id: TenantId | None, limit: int | None, *, as_json: bool) -> bool:
    """Print the faults in the data; return whether there are none."""
    # progress goes to standard error, so that programs can read standard output
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("conversations", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        faults = asyncio.run(check_installation(settings, tenant_id=tenant_id, limit=limit, progress=show))
    if as_json:
        listed = [fault.as_json() for fault in faults]
        sys.stdout.write(json.dumps({"healthy": not faults, "faults": listed}) + "\n")
        return not faults
    if not faults:
        typer.echo("No invariant is broken.")
        return True
    table = Table("fault", "tenant", "conversation", "turn or entry", "what")
    for fault in faults:
        ids = [
            format_id(object_id) if object_id else ""
            for object_id in (fault.tenant_id, fault.conversation_id, fault.object_id)
        ]
        table.add_row(fault.code, *ids, Text(fault.detail, overflow="fold"))
    Console().print(table)
    return False
