"""`tail` and `mcp`: clients of a running server."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common import fail, quiet_settings, read_settings, running_server
from app.cli.documents import print_document

commands = typer.Typer()


@commands.command("tail")
def tail_conversation(
    conversation: Annotated[str, typer.Argument(help="The conversation's id.")],
    url: Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")] = None,
    after_rev: Annotated[int | None, typer.Option(min=0, help="Begin with changes after this rev.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print frames as lines of JSON.")] = False,  # noqa: FBT002
) -> None:
    """Show a conversation and its new text as it is written. The key: TURNKEEP_API_KEY, or the admin key."""
    settings = read_settings(**({} if url is None else {"url": url}))

    from app.core.ids import format_id, parse_id
    from app.tail.connection import TailTarget
    from app.tail.service import tail

    try:
        name = format_id(parse_id(conversation))
    except ValueError:
        fail("give the id of a conversation, which is a ULID (26 characters) or a UUID. An external_id is none.")
    running, key = running_server(settings)
    asyncio.run(tail(TailTarget(running, key, name), after_rev=after_rev, raw=raw))


@commands.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")] = None,
    agent: Annotated[str | None, typer.Option(help="Name of the agent, if the key has none of its own.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the configuration for a client.")] = False,  # noqa: FBT002
) -> None:
    """Serve the tools of a running server to a model, over standard input and output. The key: as for `tail`."""
    settings = quiet_settings(**({} if url is None else {"url": url}))

    from app.mcp.client_config import Target, client_configuration

    target = Target(*running_server(settings), agent)
    if print_config:
        print_document(client_configuration(target, command=str(Path(sys.argv[0]).absolute())))
        return

    from app.mcp.bridge import serve_stdio

    asyncio.run(serve_stdio(target))
