"""Types of settings: numbers within bounds, URLs of several kinds, lists in one text."""

from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
TokenTime = Annotated[int, Field(ge=1, le=3600)]
Money = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

_ENDPOINTS = ("/embeddings", "/chat/completions", "/responses")


def api_root(url: str) -> str:
    """Return the root of an OpenAI-compatible API, from its host, its `/v1` or the full URL of an endpoint."""
    parts = _base_url(url)
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def rerank_url(url: str) -> str:
    """Return the URL of a reranker's endpoint, from itself or from the path above it."""
    parts = _base_url(url)
    path = parts.path.rstrip("/").removesuffix("/rerank")
    return f"{parts.scheme}://{parts.netloc}{path}/rerank"


def server_url(url: str) -> str:
    """Return the root of a Turnkeep server, without a slash at its end."""
    parts = _base_url(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _base_url(url: str) -> SplitResult:
    parts = urlsplit(url.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a base URL is absolute: http:// or https:// and a host")
    if parts.query or parts.fragment or url.strip().endswith(("?", "#")):
        raise ValueError("a base URL has no query and no fragment")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a base URL has no login; the key has a setting of its own")
    return parts


def names(value: object) -> object:
    """Return the names in a text, separated by commas."""
    if not isinstance(value, str):
        return value
    return tuple(dict.fromkeys(text for item in value.split(",") if (text := item.strip().lower()))) or None


Names = Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(names)]
ApiRoot = Annotated[str, AfterValidator(api_root)]
RerankUrl = Annotated[str, AfterValidator(rerank_url)]
ServerUrl = Annotated[str, AfterValidator(server_url)]


def origins(value: object) -> object:
    """Return the origins in a text, separated by commas, as browsers write them."""
    if not isinstance(value, str):
        return value
    origin_list = tuple(dict.fromkeys(text for item in value.split(",") if (text := item.strip().lower())))
    for origin in origin_list:
        parts = urlsplit(origin)
        if origin != "*" and (not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
            raise ValueError("an origin is a scheme and a host, such as https://chat.example.com, without a path")
    return origin_list or None


def nats_urls(urls: SecretStr) -> SecretStr:
    """Return the URLs of the NATS servers of one cluster, which are separated by commas; raise for an invalid one."""
    for url in urls.get_secret_value().split(","):
        try:
            parts = urlsplit(url.strip())
            good = parts.scheme in {"nats", "tls"} and bool(parts.hostname) and parts.port != 0
            good = good and parts.path in {"", "/"} and not parts.query and not parts.fragment
        except ValueError:  # not chained: its message may quote the URL, and with it the password
            good = False
        if not good:
            raise ValueError("a NATS URL is like nats://user:password@host:4222 or tls://…; commas between several")
    return urls


NatsUrls = Annotated[SecretStr, AfterValidator(nats_urls)]
