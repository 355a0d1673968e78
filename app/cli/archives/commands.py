"""The commands `export`, `import` and `convert`: arguments and output."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.archives.conversion import foreign_file, foreign_lines, opened_output
from app.cli.common import fail, quiet_settings, running_server

if TYPE_CHECKING:
    from app.cli.archives.connection import RunningServer

commands = typer.Typer()

_Url = Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")]
_SYSTEMS = "chatgpt, claude, open_webui, librechat, openai, mem0, zep, letta, langgraph or honcho."


@commands.command("export")
def export_data(
    file: Annotated[Path | None, typer.Argument(help="Write to this file; default: standard output.")] = None,
    project: Annotated[str | None, typer.Option(help="Only this project.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Only the conversation with this id.")] = None,
    created_at: Annotated[
        str | None, typer.Option(help="Time in the header; with that of an earlier export, equal data is equal bytes.")
    ] = None,
    url: _Url = None,
) -> None:
    """Export a tenant, a project or a conversation. A file that was broken off is continued by the same command.

    The key: TURNKEEP_API_KEY, or the admin key.
    """
    if project is not None and conversation is not None:
        fail("give --project or --conversation, not both.")
    if file is not None and file.is_dir():
        fail(f"{file} is a directory: name a file.")
    server = _server(url)

    from app.cli.archives.download import ExportSelection, download
    from app.cli.archives.progress import TransferProgress

    scope = ExportSelection(project=project, conversation=conversation, created_at=created_at)
    with TransferProgress("export") as progress:
        records = download(server, scope, file, progress=progress)
    typer.echo(f"turnkeep: {records} records{'' if file is None else f' in {file}'}.", err=True)


@commands.command("import")
def import_data(
    file: Annotated[Path, typer.Argument(help="Lines of an export, plain or in gzip, or the file of another system.")],
    system: Annotated[
        str | None,
        typer.Option("--from", help=f"The system, if its file is not recognised: {_SYSTEMS}", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all records and say what would be stored.")] = False,
    url: _Url = None,
) -> None:
    """Import a file, and wait for the end. Exits with code 1 if something was refused, and lists it.

    Nothing is stored twice: send the file again after a failure. The key: TURNKEEP_API_KEY, or the admin key.
    """
    if not file.is_file():
        fail(f"{file} is not a file.")
    server = _server(url)

    from app.cli.archives.progress import TransferProgress
    from app.cli.archives.upload import file_parts, follow, show, upload

    foreign = foreign_file(file, system)
    if foreign is not None and system is None:
        typer.echo(f"turnkeep: {file.name} is an export of {foreign.system}.", err=True)
    with TransferProgress("upload") as progress:
        if foreign is None:
            parts = file_parts(file, progress=progress)
        else:
            parts = (progress.counted(line) for line in foreign_lines(foreign))
        operation = upload(server, parts, dry_run=dry_run)
    with TransferProgress("import") as progress:
        ended = follow(server, operation, progress=progress)
    if not show(ended):
        raise SystemExit(1)


@commands.command()
def convert(
    file: Annotated[Path, typer.Argument(help="The document of the other system: JSON, JSON lines, gzip or ZIP.")],
    system: Annotated[
        str | None,
        typer.Option("--from", help=f"The system, if its file is not recognised: {_SYSTEMS}", show_default=False),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file; default: standard output.")] = None,
) -> None:
    """Convert an export of another system into a file that an import reads. What cannot be read is listed."""
    if not file.is_file():
        fail(f"{file} is not a file.")
    foreign = foreign_file(file, system)
    if foreign is None:
        fail(f"{file.name} is an export of Turnkeep: import it as it is.")

    from app.cli.archives.outcome import RefusedLines

    refused, count = RefusedLines(), 0
    with opened_output(output) as out:
        for line in foreign_lines(foreign):
            out.write(line)
            refused.add(line)
            count += 1
    typer.echo(f"turnkeep: {count - 2 - refused.count} records from {file.name}.", err=True)
    if not refused.show():
        raise SystemExit(1)


def _server(url: str | None) -> "RunningServer":
    settings = quiet_settings(**({} if url is None else {"url": url}))

    from app.cli.archives.connection import RunningServer

    return RunningServer(*running_server(settings))
