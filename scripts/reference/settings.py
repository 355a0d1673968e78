"""Writes the settings by group: names, defaults, meanings and ranges of `app/settings`."""

import re
from collections.abc import Sequence
from typing import Final, cast, get_args, get_origin

from annotated_types import Ge, Le, Lt, MinLen
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from app.settings import Settings, setting_fields
from app.settings.group import SettingsGroup

_PREFIX: Final = "TURNKEEP_"
_TITLES: Final = {"oidc": "OpenID Connect", "bus": "Messages between processes"}
_GUIDES: Final = {
    "server": ("scaling-out", "several processes"),
    "rates": ("limits", "limits"),
    "database": ("scaling-out", "several servers, poolers and standbys"),
    "tenancy": ("keys", "keys", "tokens", "conversation tokens"),
    "oidc": ("oidc", "access tokens"),
    "jobs": ("operations", "operations"),
    "conversations": ("retention", "retention", "summaries", "summaries"),
    "index": ("recall", "recall", "languages", "languages"),
    "context": ("contexts", "contexts"),
    "lifecycle": ("agents", "agents"),
    "facts": ("facts", "facts"),
    "chat": ("chat-model", "the chat model"),
    "embedding": ("embedding-spaces", "moving to another model"),
    "reranker": ("recall", "recall"),
    "tools": ("mcp", "tools for models", "agents", "asking an agent"),
    "telemetry": ("monitoring", "monitoring"),
    "audit": ("audit", "the audit"),
    "webhooks": ("webhooks", "webhooks"),
}
"""Guides of a group: the name of the file and the text of the link, in turn."""
_NAME: Final = re.compile(r"(?<![`\w])[A-Z][A-Z0-9_]*_[A-Z0-9]+(?![`\w])|(?<![`\w])(?:HOST|PORT)(?![`\w])")


def settings() -> str:
    """Return all settings in Markdown, a section for each group."""
    # a setting of two groups, such as the key for OpenAI, is listed with the first
    listed: set[str] = set()
    sections = [
        _section(name, group, listed)
        for name, field in Settings.model_fields.items()
        if isinstance(group := field.annotation, type) and issubclass(group, SettingsGroup)
    ]
    return "\n\n".join(sections)


def _section(name: str, group: type[SettingsGroup], listed: set[str]) -> str:
    guides = _GUIDES.get(name, ())
    links = [f"[{text}](guides/{page}.md)" for page, text in zip(guides[::2], guides[1::2], strict=True)]
    about = " ".join((group.__doc__ or "").split())
    lines = [f"## {_TITLES.get(name, name.capitalize())}", "", about + (f" See {', '.join(links)}." if links else "")]
    lines += ["", "| name | default | meaning |", "|---|---|---|"]
    for field_name, field in group.model_fields.items():
        if field_name not in listed:
            listed.add(field_name)
            lines.append(f"| `{_PREFIX}{field_name.upper()}` | {_default(field.default)} | {_meaning(field)} |")
    return "\n".join(lines)


def _default(value: object) -> str:
    if value in (None, {}):
        return "empty"
    if isinstance(value, tuple):
        return f"`{','.join(cast('tuple[str, ...]', value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _meaning(field: FieldInfo) -> str:
    text = _NAME.sub(_prefixed, field.description or "").rstrip(".") + "."
    values = [value for value in _literals(field.annotation) if f"`{value}`" not in text]
    if values:
        text += f" {', '.join(f'`{value}`' for value in values[:-1])} or `{values[-1]}`."
    if bounds := _range([*field.metadata, *_rules(field.annotation)]):
        text += f" {bounds}."
    alias = field.validation_alias
    choices = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else []
    bare = [choice for choice in choices if choice.isupper() and not choice.startswith(_PREFIX)]
    return text + "".join(f" Also `{name}`." for name in bare)


def _prefixed(match: re.Match[str]) -> str:
    name = match[0]
    return f"`{_PREFIX}{name}`" if name.lower() in setting_fields() else name


def _literals(annotation: object) -> Sequence[str]:
    """Return the values of a `Literal`, also of one in a union."""
    arguments = get_args(annotation)
    if all(isinstance(value, str) for value in arguments):
        return [str(value) for value in arguments]
    return [value for argument in arguments if get_origin(argument) is not None for value in _literals(argument)]


def _rules(annotation: object) -> Sequence[object]:
    """Return the rules inside of a union, such as those of `Annotated[int, Field(ge=1)] | None`."""
    inside = [rule for argument in get_args(annotation) for rule in getattr(argument, "__metadata__", ())]
    return [rule for one in inside for rule in (one.metadata if isinstance(one, FieldInfo) else (one,))]


def _range(metadata: Sequence[object]) -> str:
    """Return the bounds of a number, but not those that are plain, such as that it is not negative."""
    low = next((f"{rule.ge:,}" for rule in metadata if isinstance(rule, Ge)), "")
    high = next((f"{rule.le:,}" for rule in metadata if isinstance(rule, Le)), "")
    below = next((f"{rule.lt:,}" for rule in metadata if isinstance(rule, Lt)), "")
    length = next((rule.min_length for rule in metadata if isinstance(rule, MinLen)), 1)
    if high and low:
        return f"{low}–{high}"  # noqa: RUF001 - a range
    if high:
        return f"At most {high}"
    if below:
        return f"Below {below}"
    if length > 1:
        return f"At least {length} characters"
    return f"At least {low}" if low not in {"", "0", "1"} else ""
