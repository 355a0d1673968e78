"""Every setting, in frozen groups that are passed to the services that read them.

A setting has one name: `TURNKEEP_LIVE_QUEUE_FRAMES` in the environment is `settings.live.live_queue_frames` in code and
`Settings(live_queue_frames=…)` in a test. `make reference` writes `docs/settings.md` from the fields.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from app.settings.audit import AuditSettings
from app.settings.conversations import ConversationSettings, LimitSettings, LiveSettings, StreamSettings
from app.settings.database import DatabaseSettings, JobSettings, TenancySettings
from app.settings.group import SettingsGroup
from app.settings.kinds import api_root
from app.settings.memory import ContextSettings, FactSettings, IndexSettings, LifecycleSettings
from app.settings.models import ChatSettings, EmbeddingSettings, RerankerSettings, ToolSettings
from app.settings.oidc import OidcSettings
from app.settings.rates import RateSettings
from app.settings.server import BrowserSettings, BusSettings, RequestSettings, ServerSettings, TelemetrySettings
from app.settings.webhooks import WebhookSettings

__all__ = ["Settings", "api_root", "setting_fields", "unknown_variables"]

_LAST_PORT: Final = 65535
_PREFIX: Final = "TURNKEEP_"
_SIMILAR: Final = 0.7
_VERY_SIMILAR: Final = 0.9
"""For names without the prefix, which may belong to other programs."""
_OF_OTHERS: Final = re.compile(r"TURNKEEP_TEST_.*|.*_SERVICE_(?:HOST|PORT)(?:_.*)?|.*_PORT_[0-9]+_(?:TCP|UDP)(?:_.*)?")
"""Names of the tests, and those that Kubernetes makes for a service named `turnkeep`."""


class Settings(BaseModel):
    """Settings of one process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: ServerSettings
    browsers: BrowserSettings
    requests: RequestSettings
    rates: RateSettings
    database: DatabaseSettings
    tenancy: TenancySettings
    oidc: OidcSettings
    jobs: JobSettings
    bus: BusSettings
    limits: LimitSettings
    conversations: ConversationSettings
    streams: StreamSettings
    live: LiveSettings
    index: IndexSettings
    context: ContextSettings
    lifecycle: LifecycleSettings
    facts: FactSettings
    chat: ChatSettings
    embedding: EmbeddingSettings
    reranker: RerankerSettings
    tools: ToolSettings
    telemetry: TelemetrySettings
    audit: AuditSettings
    webhooks: WebhookSettings

    def __init__(self, **values: object) -> None:
        """Read every group from the environment. `values` are single settings by name, which take precedence."""
        by_group = {
            name: {key: values[key] for key in _names(group) & values.keys()} for name, group in _groups().items()
        }
        of_groups = {key for of_group in by_group.values() for key in of_group}
        super().__init__(**by_group, **{key: value for key, value in values.items() if key not in of_groups})

    @property
    def admin_key_path(self) -> Path:
        """The file with the admin key that the first start creates."""
        return self.database.data_dir / "admin-key"

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of larger request bodies that a process works on at once, of which a tenant gets at most half."""
        # the share of a tenant has room for its largest request
        return 2 * max(self.requests.max_request_bytes, self.live.live_frame_bytes)

    @model_validator(mode="after")
    def _metrics_port_is_another_port(self) -> Self:
        first, processes = self.telemetry.metrics_port, self.server.processes
        if first is None:
            return self
        if first == self.server.port:
            raise ValueError("TURNKEEP_METRICS_PORT is the same as TURNKEEP_PORT: leave it out")
        if first < self.server.port < first + processes or first + processes - 1 > _LAST_PORT:
            raise ValueError(
                "TURNKEEP_METRICS_PORT needs free ports after it, one for each of TURNKEEP_PROCESSES: choose another"
            )
        return self


def setting_fields() -> dict[str, FieldInfo]:
    """Return every setting by name."""
    return {name: field for group in _groups().values() for name, field in group.model_fields.items()}


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return the names with our prefix, or near to a setting, that are none; with the most similar setting."""
    variables = set(_variables())
    short = [name.removeprefix(_PREFIX) for name in variables if name.startswith(_PREFIX)]
    unknown: list[str] = []
    for name in sorted(environment):
        upper = name.upper()
        if upper in variables or _OF_OTHERS.fullmatch(upper):
            continue
        has_prefix = upper.startswith(_PREFIX)
        if not has_prefix and not upper.startswith("T"):
            continue
        close = (
            difflib.get_close_matches(upper.removeprefix(_PREFIX), short, n=1, cutoff=_SIMILAR)
            if has_prefix
            else difflib.get_close_matches(upper, variables, n=1, cutoff=_VERY_SIMILAR)
        )
        if close:
            unknown.append(f"{name} (did you mean {_PREFIX}{close[0].removeprefix(_PREFIX)}?)")
        elif has_prefix:
            unknown.append(name)
    return unknown


def _variables() -> Iterable[str]:
    for name, field in setting_fields().items():
        yield f"{_PREFIX}{name.upper()}"
        if isinstance(field.validation_alias, AliasChoices):
            yield from (str(alias).upper() for alias in field.validation_alias.choices)


def _groups() -> Mapping[str, type[SettingsGroup]]:
    fields = Settings.model_fields.items()
    return {
        name: of for name, field in fields if isinstance(of := field.annotation, type) and issubclass(of, SettingsGroup)
    }


def _names(group: type[SettingsGroup]) -> set[str]:
    """Return the names that a group takes as keywords: its fields and their aliases."""
    aliases = [field.validation_alias for field in group.model_fields.values()]
    return set(group.model_fields) | {
        str(name) for alias in aliases if isinstance(alias, AliasChoices) for name in alias.choices
    }
