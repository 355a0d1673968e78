"""Public API of providers: the chat model, the reranker, sizes of requests, keys of an issuer, checks of addresses.

`app.container` and `app.embedding` alone choose and build providers; they import them from their modules.
"""

from app.providers.chat import ChatModel
from app.providers.endpoint import require_model, usage_in
from app.providers.identity.issuer_keys import IssuerKeys, SigningKey
from app.providers.pieces import estimated_tokens
from app.providers.receivers.destinations import is_address, is_public
from app.providers.reranking.reranker import Reranker
from app.providers.shapes import cleaned
from app.providers.upstream import Streamed, Upstream
from app.providers.window import input_tokens, output_tokens

__all__ = [
    "ChatModel",
    "IssuerKeys",
    "Reranker",
    "SigningKey",
    "Streamed",
    "Upstream",
    "cleaned",
    "estimated_tokens",
    "input_tokens",
    "is_address",
    "is_public",
    "output_tokens",
    "require_model",
    "usage_in",
]
