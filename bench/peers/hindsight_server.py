"""Hindsight's server without a chat model or reranker: chunks of text, rank fusion, Turnkeep's embedding model."""

import json
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from peers.environments import environment_of_peer
from server import free_port, running
from suite.load import Request, Target
from turnkeep_minilm import FOLDER, MODEL_FILE, TOKENIZER_FILE

PACKAGE: Final = "hindsight-api-slim"
REQUIREMENTS: Final = (f"{PACKAGE}[local-onnx]",)

_MAX_TOKENS: Final = 4096


def append_request(place: int, texts: Sequence[str]) -> Request:
    """Retain messages, and wait until they are stored."""
    body = {"items": [{"content": text} for text in texts], "async": False}
    return Request(f"/v1/default/banks/bench-{place}/memories", json.dumps(body).encode())


def recall_request(query: str) -> Request:
    """Recall with the smallest budget."""
    body = {"query": query, "budget": "low", "max_tokens": _MAX_TOKENS}
    return Request("/v1/default/banks/bench-0/memories/recall", json.dumps(body).encode())


@asynccontextmanager
async def open_server(python: Path, folder: Path, url: str) -> AsyncGenerator[Target]:
    """Run the server on a database; its tokenizer is read from `folder`."""
    port = free_port()
    tokenizer = folder / "hindsight-tokenizer"
    tokenizer.mkdir(exist_ok=True)
    shutil.copy(FOLDER / TOKENIZER_FILE, tokenizer / "tokenizer.json")
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    settings = {
        "DATABASE_URL": url, "HOST": "127.0.0.1", "PORT": str(port), "LOG_LEVEL": "warning",
        "LLM_PROVIDER": "none", "RETAIN_EXTRACTION_MODE": "chunks", "RERANKER_PROVIDER": "rrf",
        "EMBEDDINGS_PROVIDER": "onnx", "EMBEDDINGS_ONNX_MODEL_PATH": str(FOLDER / MODEL_FILE),
        "EMBEDDINGS_ONNX_TOKENIZER_NAME_OR_PATH": str(tokenizer), "EMBEDDINGS_ONNX_DIMENSIONS": "384",
        "EMBEDDINGS_ONNX_POOLING": "mean", "EMBEDDINGS_ONNX_NORMALIZE": "true", "EMBEDDINGS_ONNX_MAX_TOKENS": "256",
    }  # fmt: skip
    environment = environment_of_peer() | {f"HINDSIGHT_API_{name}": value for name, value in settings.items()}
    environment.pop("PYTHONPATH")
    command = (str(python.with_name("hindsight-api")),)
    log = folder / "hindsight.log"
    async with running(command, environment, port=port, ready_path="/health", log=log) as pid:
        yield Target(f"http://127.0.0.1:{port}", "none", pid)
