"""The root of the command line: all groups of commands, `--version`, and the output of errors."""

from importlib.metadata import version
from typing import Annotated

import typer

from app.cli import archives, audit, clients, database, documents, keys, serving
from app.cli.common import fail
from app.core.errors import AppError

cli = typer.Typer(
    help="Turnkeep: keeps conversations, builds context.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group in (serving, database, clients, documents, archives):
    cli.registered_commands += group.commands.registered_commands
cli.add_typer(keys.commands, name="keys")
cli.add_typer(audit.commands, name="audit")


def main() -> None:
    """Run the command line; an error is one sentence on standard error and exit code 1."""
    try:
        cli()
    except AppError as error:
        fail(error.detail)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        typer.echo(f"turnkeep {version('turnkeep')}")
        raise typer.Exit


@cli.callback()
def root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read the options of `turnkeep` itself."""
