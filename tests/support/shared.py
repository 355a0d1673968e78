"""What is the same in every app of a process, made once for all of them: most of what opening an app takes.

The OpenAPI document (that it is the same for all has a test of its own), the ranks of the token counters, and the
local models. A process of the product has one app, and nothing of this.
"""

from functools import cache
from typing import Any

from fastapi import FastAPI

from app import container, main
from app.providers.local import minilm, multilingual
from app.settings import Settings

make_document = main.openapi_document


def share() -> None:
    """Let every app that is made from now on have what the first one made."""
    made: list[dict[str, object]] = []

    def shared(app: FastAPI) -> dict[str, object]:
        if not made:
            made.append(make_document(app))
        app.openapi_schema = made[0]
        return made[0]

    main.openapi_document = shared
    container.TiktokenCounter = cache(container.TiktokenCounter)
    minilm.MiniLM = cache(minilm.MiniLM)
    multilingual.MultilingualEncoder = cache(multilingual.MultilingualEncoder)


@cache
def api_document() -> dict[str, Any]:
    """Return the OpenAPI document with the default settings. It is for reading only: many tests share it."""
    return make_document(main.create_app(Settings()))
