"""`openapi` and `asyncapi`: the documents of the interfaces."""

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version

import typer

from app.cli.common import read_settings

commands = typer.Typer()


@commands.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from app.main import create_app, openapi_document

    print_document(openapi_document(create_app(read_settings())))


@commands.command()
def asyncapi() -> None:
    """Print the AsyncAPI document: the WebSocket and the event streams."""
    from app.routers.documents.asyncapi import asyncapi_document

    print_document(asyncapi_document(version("turnkeep")))


def print_document(document: Mapping[str, object]) -> None:
    """Print a document as JSON."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
