"""Writes the settings by group: names, types and ranges from `app/settings`, meanings from `docs/settings.md`."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from app.settings import Settings

_ROW: Final = re.compile(r"^\| `TURNKEEP_(\w+)` \| (`[^`]*`|empty) \| (.+) \|$", re.MULTILINE)
_TABLE: Final = re.compile(r"^\| name \| default \| meaning \|\n\|[-|]+\|\n(?:\|.*\n)+", re.MULTILINE)
_TITLES: Final = {"oidc": "OpenID Connect", "bus": "Messages between processes"}
_TYPES: Final = {
    "bool": "`true` or `false`", "int": "whole number", "float": "number", "str": "text", "Path": "folder",
    "SecretStr": "secret text",
}  # fmt: skip


def by_group(page: str) -> str:
    """Return the page of the settings, its one table divided into the groups of the code."""
    meanings = {name: (default, meaning) for name, default, meaning in _ROW.findall(page)}
    # a setting of two groups, such as the key for OpenAI, is listed with the first
    sections = [_section(name, group.annotation, meanings) for name, group in Settings.model_fields.items()]
    return _TABLE.sub(lambda _: "\n".join(sections), page, count=1)


def _section(name: str, group: object, meanings: dict[str, tuple[str, str]]) -> str:
    fields: Mapping[str, FieldInfo] = getattr(group, "model_fields", {})
    lines = [f"## {_TITLES.get(name, name.capitalize())}", "", _first_paragraph(group), ""]
    lines += ["| name | type | default | meaning |", "|---|---|---|---|"]
    for field_name, field in fields.items():
        if field_name.upper() not in meanings:
            continue
        default, meaning = meanings.pop(field_name.upper())
        lines.append(f"| `TURNKEEP_{field_name.upper()}` | {_type(field)} | {default} | {meaning} |")
    return "\n".join([*lines, ""])


def _first_paragraph(group: object) -> str:
    return " ".join((getattr(group, "__doc__", None) or "").strip().partition("\n\n")[0].split())


def _type(field: FieldInfo) -> str:
    """Return the type of a setting and its range."""
    annotation = str(field.annotation)
    literal = re.search(r"Literal\[([^\]]+)\]", annotation)
    if literal is not None:
        kind = " or ".join(f"`{value.strip(' ')[1:-1]}`" for value in literal[1].split(","))
    elif "tuple" in annotation or "frozenset" in annotation:
        kind = "list, separated by commas"
    else:
        name = next((name for name in ("SecretStr", "bool", "float", "int", "Path") if name in annotation), None)
        plain = getattr(field.annotation, "__name__", "")
        kind = _TYPES.get(plain, _TYPES.get(name or "str", "text"))
    return kind + _range(field.metadata)


def _range(metadata: Sequence[object]) -> str:
    parts: list[str] = []
    for rule in metadata:
        match rule:
            case Ge():
                parts.append(f"≥ {rule.ge}")
            case Gt():
                parts.append(f"> {rule.gt}")
            case Le():
                parts.append(f"≤ {rule.le}")
            case Lt():
                parts.append(f"< {rule.lt}")
            case MinLen():
                parts.append(f"at least {rule.min_length} characters")
            case MaxLen():
                parts.append(f"at most {rule.max_length} characters")
            case _:
                continue
    return f", {', '.join(parts)}" if parts else ""
