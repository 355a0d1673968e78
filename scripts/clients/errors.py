"""Writes the error codes of the client libraries, with the status and remedy of `scripts.reference.error_advice`."""

import json
import re
from dataclasses import dataclass
from typing import Final

from scripts.clients.python_types import HEADER
from scripts.reference.error_advice import ERROR_ADVICE

_STATUS: Final = re.compile(r"\d{3}")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_KINDS: Final = {
    400: "Invalid", 401: "Unauthenticated", 403: "Forbidden", 404: "NotFound", 408: "Unavailable", 409: "Conflict",
    412: "Conflict", 413: "TooLarge", 429: "RateLimited",
}  # fmt: skip
_SERVER_FAULT: Final = 500


@dataclass(frozen=True, slots=True)
class Code:
    """An error code that a response can have."""

    name: str
    status: int
    remedy: str

    @property
    def kind(self) -> str:
        """The class of the errors of its status."""
        return _KINDS.get(self.status, "Invalid" if self.status < _SERVER_FAULT else "Unavailable")

    @property
    def class_name(self) -> str:
        """The name of its class in Python."""
        return "".join(word.capitalize() for word in self.name.split("_")) + "Error"


def response_codes() -> list[Code]:
    """Return the codes that responses have, in their order."""
    return [
        Code(name, int(status[0]), _LINK.sub(r"\1", advice))
        for name, (where, advice) in ERROR_ADVICE.items()
        if (status := _STATUS.match(where)) is not None
    ]


def write_python_errors() -> str:
    """Return the source of `errors.py` of the Python client."""
    codes = response_codes()
    kinds = sorted({f"{code.kind}Error" for code in codes})
    lines = [
        HEADER, "from collections.abc import Mapping", "from types import MappingProxyType", "from typing import Final",
        "", f"from turnkeep_client.errors import {', '.join([*kinds, 'TurnkeepError'])}",
    ]  # fmt: skip
    taken = {*kinds, "TurnkeepError"}
    classes: dict[str, str] = {}
    for code in codes:
        # a code that is named like its kind, such as `not_found`, has the class of the kind
        classes[code.name] = code.class_name
        if code.class_name not in taken:
            lines += ["", "", f"class {code.class_name}({code.kind}Error):", f'    """`{code.name}`."""']
    lines += ["", "", "ERRORS: Final[Mapping[str, type[TurnkeepError]]] = MappingProxyType({"]
    lines += [f'    "{name}": {named},' for name, named in classes.items()]
    lines += ["})", "", "REMEDIES: Final[Mapping[str, str]] = MappingProxyType({"]
    lines += [f"    {json.dumps(code.name)}: {json.dumps(code.remedy, ensure_ascii=False)}," for code in codes]
    return "\n".join([*lines, "})"]) + "\n"


def write_typescript_errors() -> str:
    """Return the source of `errors.ts` of the TypeScript client."""
    codes = response_codes()
    lines = ["// Generated from the table of error codes by `make clients`. Do not edit.", "export const REMEDIES = {"]
    lines += [f"  {code.name}: {json.dumps(code.remedy, ensure_ascii=False)}," for code in codes]
    return "\n".join([*lines, "} as const;", "", "export type ErrorCode = keyof typeof REMEDIES;"]) + "\n"
