"""Connections to Postgres at a URL that may name several servers, of which one accepts writes, and their errors.

asyncpg tries the servers of a URL one after the other under one time limit, so a server that does not answer (switched
off, cut from the network) uses it up, and the next one is never tried. Here each server has its own share of the time,
and the one that accepted the last connection is tried first. This memory has no data of tenants: its keys are URLs.
"""

import random
import re
from collections.abc import Mapping
from typing import Final, TypedDict, Unpack, cast
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from app.core.errors import Busy, Conflict, Unavailable

_DEFAULT_PORT: Final = 5432
_last_used: dict[tuple[str, bool], int] = {}

CONNECTION_ERRORS = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InternalClientError,
)
_CONTENTION_ERRORS = (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError, asyncpg.SerializationError)
_SHARD_NUMBER: Final = re.compile(r"_\d{6,}$")
"""On Citus, the name of a constraint of a shard ends with the number of the shard."""
_RACES: Final = """
    api_keys_pkey audit_days_ordinal_key audit_days_pkey audit_entries_pkey audit_unsealed_pkey
    conversation_heads_pkey embedding_spaces_pkey embedding_spaces_provider_model_dimensions_key erasures_pkey
    fact_decision_sources_pkey fact_decisions_pkey fact_evidence_pkey facts_pkey idempotency_records_pkey
    import_chunks_pkey index_entries_pkey index_removals_pkey installation_pkey jobs_pkey jobs_waiting_key
    memories_pkey model_usage_pkey operations_pkey responses_pkey searched_space_pkey summaries_pkey
    tenant_limits_pkey tenant_usage_pkey tenants_pkey turn_chunks_pkey turn_streams_pkey
    turns_tenant_id_conversation_id_seq_key vectors_pkey webhook_deliveries_number_key webhook_deliveries_pkey
    webhook_lanes_pkey webhooks_pkey
"""
"""Two requests created the same row at once: a repetition finds that of the first, makes another id, or counts on."""

UNIQUE: Final[Mapping[str, str | None]] = {
    # callers choose these ids, and another object has it: a repetition would fail, too
    "turns_pkey": "turn_id_conflict",
    "conversations_pkey": "conversation_conflict",
    "conversations_tenant_id_project_external_id_key": "conversation_conflict",
    **dict.fromkeys(_RACES.split()),
}
"""Every primary key and unique index: the error code of a violation, None if the same request may succeed later.

A violation of any other one is a fault of this service, and is not translated.
"""

_NOT_USABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.InternalClientError,
)


class ConnectOptions(TypedDict, total=False):
    """Options of asyncpg that callers set."""

    command_timeout: float
    server_settings: dict[str, str]
    statement_cache_size: int
    max_cacheable_statement_size: int


async def connect(
    url: str, *, timeout_s: float = 60.0, to_standby: bool = False, **options: Unpack[ConnectOptions]
) -> "asyncpg.Connection[asyncpg.Record]":
    """Connect to the server of a URL; of several servers, to the one that accepts writes, or to a standby.

    Each of several servers gets an equal share of `timeout_s`. Raises the driver's error of the last server that was
    tried, OSError or TimeoutError if no server is usable. An error of the login is raised at once.
    """
    servers = find_servers(url)
    if not servers[1:]:
        return await asyncpg.connect(url, timeout=timeout_s, **options)
    target: str | None = "standby" if to_standby else "read-write"
    if "target_session_attrs" in parse_qs(urlsplit(url).query):
        target = None
    # of several standbys, each process begins with any: so they share the work
    first = _last_used.get((url, to_standby), random.randrange(len(servers)) if to_standby else 0)  # noqa: S311 - not a secret
    failure: Exception | None = None
    for place in (first, *(place for place in range(len(servers)) if place != first)):
        host, port = servers[place]
        try:
            connection = await asyncpg.connect(
                url,
                host=host,
                port=port,
                timeout=timeout_s / len(servers),
                target_session_attrs=target,  # pyright: ignore[reportArgumentType] - texts are documented
                **options,
            )
        except _NOT_USABLE as error:
            failure = error
        else:
            _last_used[url, to_standby] = place
            return connection
    raise cast("Exception", failure)


def find_servers(url: str) -> list[tuple[str, int]]:
    """Return host and port of each server that a URL names, as libpq reads them; none if it names no host.

    `postgresql://one:5432,two:5433/db` and `postgresql:///db?host=one,two&port=5432,5433` name two. Raises ValueError
    if the number of ports fits neither one nor the number of hosts, or a port is no number.
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    names = parts.netloc.rpartition("@")[2] or ",".join(query.get("host", []))
    ports = [port for port in ",".join(query.get("port", [])).split(",") if port]
    hosts = [_split_port(name) for name in names.split(",") if name]
    if len(ports) > 1 and len(ports) != len(hosts):
        raise ValueError("a database URL has one port for all hosts, or as many as hosts")
    if ports:
        ports = ports * len(hosts) if len(ports) == 1 else ports
        hosts = [(host, own or port) for (host, own), port in zip(hosts, ports, strict=True)]
    return [(unquote(host), int(port or _DEFAULT_PORT)) for host, port in hosts]


def _split_port(name: str) -> tuple[str, str]:
    """Return host and port of `host:port`, `[::1]:port` or a path of a socket's folder."""
    if name.startswith("["):
        host, _, rest = name[1:].partition("]")
        return host, rest.removeprefix(":")
    if name.startswith(("/", "%2F", "%2f")):
        return name, ""
    host, _, port = name.partition(":")
    return host, port


def raise_translated(error: BaseException) -> None:
    """Raise the error of this project for an error of the driver; nothing for any other."""
    if isinstance(error, (*CONNECTION_ERRORS, TimeoutError, asyncpg.QueryCanceledError)):
        raise unavailable() from error
    if isinstance(error, asyncpg.UniqueViolationError):
        name = _SHARD_NUMBER.sub("", error.constraint_name or "")
        if name not in UNIQUE:
            return
        if (code := UNIQUE[name]) is not None:
            raise Conflict(code, "Another object has this id or name; nothing was stored.") from error
    if isinstance(error, (*_CONTENTION_ERRORS, asyncpg.UniqueViolationError)):
        detail = "Another request is changing this object; send the request again."
        raise Busy("resource_busy", detail, retry_after_s=1) from error


def unavailable() -> Unavailable:
    """Return the error of a database that does not answer."""
    return Unavailable(
        "database_unavailable",
        "The database does not answer. The request may be sent again: with turn ids or an Idempotency-Key nothing is"
        " stored twice.",
        retry_after_s=1,
    )
