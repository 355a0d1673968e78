"""Turnkeep's embedding model behind the HTTP call for embeddings of OpenAI, for peers that embed over HTTP only.

Run as a process: `python -m peers.embeddings_app <port>`, in Turnkeep's own environment.
"""

import sys

import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from app.providers.local.embedder import LocalEmbedder


class Texts(BaseModel):
    """The body of a request: texts to embed."""

    input: list[str]
    model: str


class Embedding(BaseModel):
    """The vector of one text, by its place in the request."""

    object: str = "embedding"
    index: int
    embedding: list[float]


class Usage(BaseModel):
    """Counts of tokens, which clients require and which are not counted here."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class Embeddings(BaseModel):
    """The answer."""

    object: str = "list"
    model: str
    data: list[Embedding]
    usage: Usage = Usage()


def create_app() -> FastAPI:
    """Return the application. It answers floats, also where another encoding is asked for."""
    embedder = LocalEmbedder()
    app = FastAPI()

    @app.post("/v1/embeddings")
    async def embed(body: Texts) -> Response:
        vectors = await embedder.embed(body.input, purpose="document")
        data = [Embedding(index=index, embedding=vector) for index, vector in enumerate(vectors.tolist())]
        # encoded here, since FastAPI would validate every float of its own answer again
        return Response(Embeddings(model=body.model, data=data).model_dump_json(), media_type="application/json")

    return app


def main() -> None:
    """Serve until the process is ended."""
    uvicorn.run(create_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
