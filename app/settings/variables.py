"""Names in the environment that look like settings and are none. Pure."""

import difflib
import re
from collections.abc import Iterable
from typing import Final

from pydantic import AliasChoices

from app.settings import setting_fields

_PREFIX: Final = "TURNKEEP_"
_SIMILAR: Final = 0.7
_VERY_SIMILAR: Final = 0.9
"""For names without the prefix, which may belong to other programs."""
_OF_OTHERS: Final = re.compile(r"TURNKEEP_TEST_.*|.*_SERVICE_(?:HOST|PORT)(?:_.*)?|.*_PORT_[0-9]+_(?:TCP|UDP)(?:_.*)?")
"""Names of the tests, and those that Kubernetes makes for a service named `turnkeep`."""


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return the names with our prefix, or near to a setting, that are none; with the most similar setting."""
    known = set(_names())
    short = [name.removeprefix(_PREFIX) for name in known if name.startswith(_PREFIX)]
    unknown: list[str] = []
    for name in sorted(environment):
        upper = name.upper()
        if upper in known or _OF_OTHERS.fullmatch(upper):
            continue
        has_prefix = upper.startswith(_PREFIX)
        if not has_prefix and not upper.startswith("T"):
            continue
        close = (
            difflib.get_close_matches(upper.removeprefix(_PREFIX), short, n=1, cutoff=_SIMILAR)
            if has_prefix
            else difflib.get_close_matches(upper, known, n=1, cutoff=_VERY_SIMILAR)
        )
        if close:
            unknown.append(f"{name} (did you mean {_PREFIX}{close[0].removeprefix(_PREFIX)}?)")
        elif has_prefix:
            unknown.append(name)
    return unknown


def _names() -> Iterable[str]:
    for name, field in setting_fields().items():
        yield f"{_PREFIX}{name.upper()}"
        if isinstance(field.validation_alias, AliasChoices):
            yield from (str(alias).upper() for alias in field.validation_alias.choices)
