"""Convert facts of the environment to checks with a level and a remedy. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from app.core.database.reader import StandbyState
from app.core.database.schema import EXTENSIONS, UNKNOWN_REMEDY
from app.core.database.transactions import APP_ROLE, OPS_ROLE, SEARCH_ROLE
from app.diagnostics.schemas import Check, Level
from app.diagnostics.store import ChatFacts, ServerFacts, VectorFacts
from app.index.service import ChosenSpace
from app.providers.chat import Probe
from app.providers.local.embedder import LOCAL_MODELS
from app.providers.remote.openai import KNOWN_DIMENSIONS, PROVIDER
from app.providers.schemas import EmbeddingSpaceName
from app.settings import Settings, unknown_variables
from app.settings.models import ChatSettings

ROLES = (APP_ROLE, OPS_ROLE, SEARCH_ROLE)
_MIN_SERVER_VERSION = 150000
_MIN_VECTOR_VERSION = (0, 8)
_CLOCK_S = 2.0
_UNSAFE_SYNC = {"off", "local"}  # `local` does not wait for a synchronous standby
_SLOW_REVOCATION_S = 1.0
_SHORT_SESSION_S = 60
_LITTLE_DISK, _TOO_LITTLE_DISK = 2 * 2**30, 256 * 2**20
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_MiB = 2**20
_FEW_CALLS = 4


def _ok(name: str, finding: str) -> Check:
    return Check(name, Level.OK, finding)


def _judged(name: str, finding: str, *, fault: str | None, remedy: str, level: Level = Level.FAIL) -> Check:
    """Return a check with its finding, or with the fault and its remedy."""
    return _ok(name, finding) if fault is None else Check(name, level, fault, remedy)


def check_server(app: ServerFacts, ops: ServerFacts, settings: Settings, *, now: datetime) -> Iterator[Check]:
    """Yield the checks of a server, queried as the application and as ops. `now` is this process's clock."""
    version = f"{app.version_num // 10000}.{app.version_num % 10000}"
    yield _judged(
        "postgres version",
        version,
        fault=version if app.version_num < _MIN_SERVER_VERSION else None,
        remedy="Turnkeep needs Postgres 15 or newer.",
    )
    for extension in EXTENSIONS:
        yield _check_extension(extension, app.extensions.get(extension), app.available.get(extension))
    yield from _check_roles(app, ops)
    if settings.bus.nats_url is None:
        yield _judged(
            "notifications are private",
            "PUBLIC may not connect",
            fault="every login of this server may connect, and listen" if app.public_may_connect else None,
            remedy="As its owner: grant connect on database … to the logins of Turnkeep; revoke connect on database …"
            " from public; or set TURNKEEP_NATS_URL.",
            level=Level.WARN,
        )
    yield _check_clock((app.now - now).total_seconds())
    yield _check_durability(app)
    yield _check_connections(app, settings.database.database_pool_size + (4 if settings.bus.nats_url is None else 2))


def _check_extension(name: str, version: str | None, available: str | None) -> Check:
    check = f"extension {name}"
    if version is None:
        if available is None:
            remedy = "Install it on the server (pgvector, or postgresql-contrib), then: create extension " + name + ";"
            return Check(check, Level.FAIL, "not installed on the server", remedy)
        return Check(check, Level.FAIL, "missing", f"As a superuser, in this database: create extension {name};")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if name == "vector" and numbers < _MIN_VECTOR_VERSION:
        return Check(check, Level.FAIL, version, "pgvector 0.8 or newer is needed: alter extension vector update;")
    return _ok(check, version)


def _check_roles(app: ServerFacts, ops: ServerFacts) -> Iterator[Check]:
    """Yield the checks of roles, logins and row-level security."""
    missing = [role for role in ROLES if role not in app.roles]
    yield _judged(
        "roles",
        ", ".join(ROLES),
        fault=f"missing: {', '.join(missing)}" if missing else None,
        remedy="`turnkeep migrate` with an owner that may make roles, or: "
        + " ".join(f"create role {role} nologin;" for role in missing),
    )
    roles = " and ".join(app.wider_roles)
    yield _judged(
        "separate logins",
        app.login,
        fault=f"the login of the application, {app.login}, can switch to {roles}" if roles else None,
        remedy="SQL that an attacker injects could reach all tenants. Use three logins (docs/reference/database.md):"
        " DATABASE_URL for a member of turnkeep_app only, TURNKEEP_OPS_DATABASE_URL, TURNKEEP_OWNER_DATABASE_URL.",
        level=Level.WARN,
    )
    for role, use in ((app.role, "the application"), (ops.role, "ops")):
        yield _judged(
            f"row security binds {use}",
            role.name,
            fault=f"{role.name} is a superuser or has BYPASSRLS" if role.unbound else None,
            remedy=f"alter role {role.name} nosuperuser nobypassrls; or connect as another role.",
        )
    yield _judged(
        "row security on every tenant table",
        "enabled, forced, policied",
        fault=f"not enabled, forced and policied: {', '.join(app.bare_tables)}" if app.bare_tables else None,
        remedy="Find out who turned it off; then, as the owner, for each:"
        " alter table … enable row level security, force row level security;",
    )


def _check_clock(ahead_s: float, name: str = "clock") -> Check:
    side = "ahead of" if ahead_s > 0 else "behind"
    return _judged(
        name,
        f"{ahead_s:+.2f} s",
        fault=f"the database is {abs(ahead_s):.1f} s {side} this process" if abs(ahead_s) > _CLOCK_S else None,
        remedy="Let both machines follow the same time server (chrony, ntpd).",
        level=Level.WARN,
    )


def _check_durability(facts: ServerFacts) -> Check:
    settings = {
        "fsync": facts.fsync,
        "full_page_writes": facts.full_page_writes,
        "synchronous_commit": facts.synchronous_commit not in _UNSAFE_SYNC,
    }
    off = [name for name, is_on in settings.items() if not is_on]
    changes = " ".join(f"alter system set {name} = on;" for name in off)
    return _judged(
        "durability",
        f"fsync on, synchronous_commit {facts.synchronous_commit}",
        fault=f"not on: {', '.join(off)}" if off else None,
        remedy=f"An acknowledged write may be lost in a crash: {changes} select pg_reload_conf();",
        level=Level.WARN if off == ["synchronous_commit"] and facts.synchronous_commit == "local" else Level.FAIL,
    )


def _check_connections(facts: ServerFacts, wanted: int) -> Check:
    finding = f"{facts.connections} of {facts.max_connections} in use; one process takes up to {wanted}"
    return _judged(
        "connections",
        finding,
        fault=finding if wanted > facts.max_connections - facts.connections else None,
        remedy="Lower TURNKEEP_DATABASE_POOL_SIZE, raise max_connections, or put a pooler in session mode between.",
        level=Level.FAIL if wanted > facts.max_connections else Level.WARN,
    )


def check_standby(state: StandbyState | None, *, refusal: str = "", now: datetime) -> list[Check]:
    """Check the standby that reads are sent to; None if it did not answer. It fails no request, so nothing is worse."""
    name = "standby"
    if state is None:
        remedy = f"Check TURNKEEP_DATABASE_READ_URL, its login, and that its servers follow this primary. {refusal}"
        return [
            Check(name, Level.WARN, "no standby of this database answers, so the primary answers all reads", remedy)
        ]
    if not state.is_standby:
        remedy = "TURNKEEP_DATABASE_READ_URL leads to a primary: name the standbys, or leave the setting out."
        return [Check(name, Level.WARN, "not in recovery, so the primary answers all reads", remedy)]
    if not state.has_timeline:
        remedy = "After a failover: `checkpoint;` as a superuser, on the primary and then on the standby."
        return [Check(name, Level.WARN, "its last restart point is of another timeline", remedy)]
    replay = _judged(
        name,
        "has replayed all that was committed",
        fault=f"{state.behind_bytes} bytes of the log behind" if state.behind_bytes else None,
        remedy="The primary answers reads until it has caught up. See pg_stat_replication on the primary.",
        level=Level.WARN,
    )
    return [replay, _check_clock((state.now - now).total_seconds(), "standby: clock")]


def check_schema(revision: str | None, revisions: Sequence[str]) -> Check:
    """Compare the recorded revision of the database with the revisions of this build, oldest first."""
    if revision is None:
        return Check("schema", Level.FAIL, "no schema", "Run `turnkeep migrate`.")
    if revision not in revisions:
        remedy = UNKNOWN_REMEDY[0].upper() + UNKNOWN_REMEDY[1:]
        return Check("schema", Level.FAIL, f"{revision}, of another build", remedy)
    fault = None if revision == revisions[-1] else f"{revision}, and this build needs {revisions[-1]}"
    return _judged("schema", revision, fault=fault, remedy="Run `turnkeep migrate`.")


def configured_spaces(settings: Settings) -> list[EmbeddingSpaceName]:
    """Return the configured spaces, the first embedder's first; 0 dimensions if only the endpoint knows them."""
    embedding = settings.embedding
    embedders = [(embedding.embedder, embedding.embeddings_model, embedding.embeddings_dimensions)]
    if embedding.next_embedder is not None:
        embedders.append(
            (embedding.next_embedder, embedding.next_embeddings_model, embedding.next_embeddings_dimensions)
        )
    return [
        LOCAL_MODELS[embedder]().space
        if embedder in LOCAL_MODELS
        else EmbeddingSpaceName(PROVIDER, model, dimensions or KNOWN_DIMENSIONS.get(model, 0))
        for embedder, model, dimensions in embedders
    ]


def knows(configured: Sequence[EmbeddingSpaceName], space: EmbeddingSpaceName) -> bool:
    """Return whether one of the spaces is this one, as far as known without a request to an endpoint."""
    return any(
        (name.provider, name.model) == (space.provider, space.model) and name.dimensions in {0, space.dimensions}
        for name in configured
    )


def check_space(chosen: ChosenSpace | None, configured: Sequence[EmbeddingSpaceName]) -> Check:
    """Check that a process with these settings searches the space of the installation."""
    name = "embedding space"
    if chosen is None:
        return _ok(name, f"{_shown(configured[0])}, by the settings")
    if knows(configured, chosen.name):
        return _ok(name, _shown(chosen.name))
    where = "" if chosen.base_url is None else f" (its endpoint was {chosen.base_url})"
    return Check(
        name,
        Level.FAIL,
        f"the installation searches {_shown(chosen.name)}, these settings are for {_shown(configured[0])}",
        f"A process with these settings searches another space than the rest. Name the space of the installation{where}"
        " by TURNKEEP_EMBEDDER and TURNKEEP_EMBEDDINGS_MODEL or by TURNKEEP_NEXT_EMBEDDER, or move the installation"
        " with `turnkeep reembed`.",
    )


def _shown(space: EmbeddingSpaceName) -> str:
    return f"{space.provider}/{space.model}/{space.dimensions or 'as the endpoint says'}"


def check_vectors(facts: VectorFacts, settings: Settings) -> Check:
    """Check that every entry has vectors; an entry without is found by words only."""
    if not facts.waiting:
        return _ok("vectors", f"all {facts.entries} entries have theirs")
    fault = (
        f"{facts.waiting} of {facts.entries} entries have none of the present embedder; jobs: {facts.queued} waiting,"
        f" {facts.parked} parked, {facts.cancelled} cancelled"
    )
    if facts.errors:
        fault += f"; last errors: {', '.join(facts.errors)}"
    remedy = (
        "They are found by words. Workers make them: `turnkeep serve` or `turnkeep worker` looks at its start"
        f" and every {10 * settings.jobs.sweep_interval_s:g} s. Run one, and ask again."
    )
    if facts.parked or facts.cancelled:
        remedy += (
            " Jobs parked because the embedder was away are tried again when it answers; cancelled ones, and those"
            " parked for an error of another kind, with POST /v1/admin/jobs/{id}/retry."
        )
    return Check("vectors", Level.WARN, fault, remedy)


def check_chat(answer: Probe | None, model: str = "") -> Check:
    """Check the answer of the chat model's endpoint to a request for its models; None if no model is configured."""
    name = "chat model"
    if answer is None:
        return _ok(name, "not configured: requests that need a model get model_not_configured, all others work")
    if answer.refused:
        remedy = "Check TURNKEEP_LLM_API_KEY; for OpenAI itself, OPENAI_API_KEY is enough."
        return Check(name, Level.FAIL, answer.trouble, remedy)
    if answer.trouble:
        remedy = "Check TURNKEEP_LLM_BASE_URL. Until it answers, calls that need a chat model wait or fail."
        return Check(name, Level.WARN, answer.trouble, remedy)
    if answer.listed is False:
        remedy = "Check TURNKEEP_LLM_MODEL; some gateways do not list all their models."
        return Check(name, Level.WARN, f"its endpoint does not list {model}", remedy)
    return _ok(name, f"{model}, its endpoint answers")


def check_chat_calls(facts: ChatFacts, settings: ChatSettings) -> Check:
    """Check that calls of the chat model end in time: failed calls that used tokens are mostly time-outs."""
    name = "chat model: time-outs"
    finding = f"{facts.failed} of {facts.calls} calls failed since yesterday (UTC)"
    if facts.timed_out_jobs:
        finding += f"; {facts.timed_out_jobs} jobs wait after a time-out"
    elif facts.failed < _FEW_CALLS or facts.failed * 4 < facts.calls:
        return _ok(name, finding)
    remedy = (
        f"If the log has model_timeout, raise TURNKEEP_LLM_JOB_TIMEOUT_S (now {settings.llm_job_timeout_s:g}) for jobs"
        f" and TURNKEEP_LLM_TIMEOUT_MS (now {settings.llm_timeout_ms}) for interactive calls, set"
        " TURNKEEP_LLM_CONTEXT_TOKENS to the window of the model, or use a faster one (docs/guides/chat-model.md)."
    )
    return Check(name, Level.WARN, finding, remedy)


def check_settings(settings: Settings, environment: Mapping[str, str]) -> list[Check]:
    """Check for settings that contradict each other, or that are probably mistakes."""
    faults = [*_contradictions(settings), *_unknown_settings(environment)]
    return faults or [_ok("settings", "no contradiction")]


def _contradictions(settings: Settings) -> Iterator[Check]:
    if settings.database.database_url is None and (
        settings.database.ops_database_url or settings.database.owner_database_url
    ):
        yield Check(
            "settings: database",
            Level.FAIL,
            "a URL for ops or the owner is set, and none for the application",
            "Set TURNKEEP_DATABASE_URL, or unset the others: without it the embedded Postgres is used.",
        )
    elif settings.database.owner_database_url and not settings.database.ops_database_url:
        yield Check(
            "settings: database",
            Level.WARN,
            "the owner has a URL of its own and ops has not",
            f"Set TURNKEEP_OPS_DATABASE_URL too: else the application's login must be able to take on {OPS_ROLE}.",
        )
    if settings.server.host not in _LOOPBACK:
        yield Check(
            "settings: host",
            Level.WARN,
            f"{settings.server.host} is reached from other machines, without TLS",
            "Put a proxy with TLS in front, or set TURNKEEP_HOST=127.0.0.1.",
        )
    if settings.requests.max_request_bytes < settings.limits.max_text_bytes:
        yield Check(
            "settings: limits",
            Level.WARN,
            "a text may be larger than the request it comes in",
            "TURNKEEP_MAX_REQUEST_BYTES must be more than TURNKEEP_MAX_TEXT_BYTES.",
        )
    if settings.tenancy.key_cache_s > _SLOW_REVOCATION_S:
        yield Check(
            "settings: key cache",
            Level.WARN,
            f"a revoked key is accepted for up to {settings.tenancy.key_cache_s:g} s elsewhere",
            "Lower TURNKEEP_KEY_CACHE_S.",
        )
    if settings.conversations.session_gap_s < _SHORT_SESSION_S:
        yield Check(
            "settings: sessions",
            Level.WARN,
            f"a silence of {settings.conversations.session_gap_s} s starts a new session",
            "TURNKEEP_SESSION_GAP_S is in seconds; 3600 is the default.",
        )


def _unknown_settings(environment: Mapping[str, str]) -> Iterator[Check]:
    unknown = unknown_variables(environment)
    if unknown:
        remedy = "docs/settings.md lists all settings; these have no effect."
        yield Check("settings: names", Level.WARN, f"not known: {', '.join(unknown)}", remedy)


def check_disk(path: Path, free: int) -> Check:
    """Check the free space for the data."""
    finding = f"{free // _MiB} MiB free at {path}"
    return _judged(
        "disk",
        finding,
        fault=finding if free < _LITTLE_DISK else None,
        remedy="Free some space: Postgres stops if it cannot write.",
        level=Level.FAIL if free < _TOO_LITTLE_DISK else Level.WARN,
    )
