"""`tail` and `mcp`: clients of a running server."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from app.cli.common import admin_key, fail, quiet_settings, read_settings, running_server, server_url
from app.cli.documents import print_document

_KEY_PLACE: Final = "YOUR_KEY"

commands = typer.Typer()


@commands.command("tail")
def tail_conversation(
    conversation: Annotated[str | None, typer.Argument(help="The conversation's id.")] = None,
    external_id: Annotated[str | None, typer.Option(help="Your own name for it, in place of the id.")] = None,
    project: Annotated[str, typer.Option(help="The project of --external-id.")] = "default",
    url: Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")] = None,
    after_rev: Annotated[int | None, typer.Option(min=0, help="Begin with changes after this rev.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print frames as lines of JSON.")] = False,
) -> None:
    """Show a conversation and its new text as it is written. The key: TURNKEEP_API_KEY, or the admin key."""
    settings = read_settings(**({} if url is None else {"url": url}))

    from app.core.ids import format_id, parse_id
    from app.tail.connection import TailTarget
    from app.tail.service import tail

    if (conversation is None) == (external_id is None):
        fail("give the id of a conversation, or its --external-id.")
    if external_id is not None:
        running, key = running_server(settings)
        name = _id_of(running, key, external_id, project)
    else:
        try:
            name = format_id(parse_id(conversation or ""))
        except ValueError:
            fail(
                "give the id of a conversation, which is a ULID (26 characters) or a UUID."
                " An external_id is none: give it as --external-id."
            )
        running, key = running_server(settings)
    asyncio.run(tail(TailTarget(running, key, name), after_rev=after_rev, raw=raw))


def _id_of(url: str, key: str, external_id: str, project: str) -> str:
    """Return the id of the conversation with an external id."""
    from app.cli.archives.connection import RunningServer, TransportError, UnavailableError, require_success

    server = RunningServer(url, key)
    wanted = {"external_id": external_id, "project": project, "archived": "any", "limit": "1"}
    try:
        with server.client() as http:
            answer = http.get("/v1/conversations", params=wanted)
            require_success(answer)
    except TransportError:
        fail(server.unreachable())
    except UnavailableError as error:
        fail(error.sentence)
    listed = answer.json()["data"]
    if not listed:
        fail("there is no conversation with this external_id in the project: --project names another.")
    return str(listed[0]["id"])


@commands.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="The server; default: TURNKEEP_URL, or the one here.")] = None,
    agent: Annotated[str | None, typer.Option(help="Name of the agent, if the key has none of its own.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the configuration for a client.")] = False,
) -> None:
    """Serve the tools of a running server to a model, over standard input and output. The key: as for `tail`."""
    settings = quiet_settings(**({} if url is None else {"url": url}))

    from app.mcp.client_config import Target, client_configuration

    if print_config:
        own_key = None if settings.server.api_key is None else settings.server.api_key.get_secret_value()
        if own_key is None or own_key == admin_key(settings):
            # a file of an editor is no place for the administrator's key
            own_key = _KEY_PLACE
            typer.echo(
                f"turnkeep: put a key in place of {_KEY_PLACE}:"
                " `turnkeep keys create --name editor` prints one with read and write.",
                err=True,
            )
        target = Target(server_url(settings), own_key, agent)
        print_document(client_configuration(target, command=str(Path(sys.argv[0]).absolute())))
        return

    from app.mcp.bridge import serve_stdio

    asyncio.run(serve_stdio(Target(*running_server(settings), agent)))
