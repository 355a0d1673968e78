"""Public API of providers: how models are called, and how much they read and write. Models are in `schemas`."""

from app.providers.endpoint import InvalidAnswer, Refused, require_model, usage_in
from app.providers.pieces import estimated_tokens
from app.providers.receivers.destinations import is_address, is_public
from app.providers.shapes import LimitName
from app.providers.upstream import DONE, Streamed, Upstream, UpstreamRefusal, configured
from app.providers.window import input_tokens, output_tokens

__all__ = [
    "DONE",
    "InvalidAnswer",
    "LimitName",
    "Refused",
    "Streamed",
    "Upstream",
    "UpstreamRefusal",
    "configured",
    "estimated_tokens",
    "input_tokens",
    "is_address",
    "is_public",
    "output_tokens",
    "require_model",
    "usage_in",
]
