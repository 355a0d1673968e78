"""Writes `operations.py` of the Python client: one method for each operation, for asyncio and without it."""

import re
from typing import Final

from scripts.clients.document import JsonObject, Operation, Parameter, operations_of
from scripts.clients.python_types import HEADER, docstring, type_of

_IMPORTS: Final = """
from typing import Literal, Protocol, TypeAlias, cast
from urllib.parse import quote

from turnkeep_client.generated import types

Repeat: TypeAlias = Literal["safe", "key", "unsent"]
\"\"\"When a request may be sent again: always; with its Idempotency-Key; only if it was not executed.\"\"\"
Value: TypeAlias = str | int | float | bool | list[str] | list[int] | None


class Transport(Protocol):
    \"\"\"Sends a request, and returns the parsed JSON of its response, or bytes for other content.\"\"\"

    def request(
        self, method: str, path: str, repeat: Repeat, *, query: dict[str, Value], headers: dict[str, str | None],
        body: object = None, is_bytes: bool = False,
    ) -> object: ...


class AsyncTransport(Protocol):
    \"\"\"The same for asyncio.\"\"\"

    async def request(
        self, method: str, path: str, repeat: Repeat, *, query: dict[str, Value], headers: dict[str, str | None],
        body: object = None, is_bytes: bool = False,
    ) -> object: ...
"""


def write_operations(document: JsonObject) -> str:
    """Return the source of the module."""
    operations = operations_of(document)
    lines = [HEADER, _IMPORTS]
    for name, transport, is_async in (
        ("Operations", "Transport", False),
        ("AsyncOperations", "AsyncTransport", True),
    ):
        lines += [
            "", f"class {name}:", '    """The operations of the API, by their ids."""', "",
            f"    def __init__(self, transport: {transport}) -> None:", "        self._transport = transport", "",
        ]  # fmt: skip
        for operation in operations:
            lines += [*_method(operation, is_async=is_async), ""]
    return "\n".join(lines).rstrip() + "\n"


def _method(operation: Operation, *, is_async: bool) -> list[str]:
    path = [one for one in operation.parameters if one.place == "path"]
    named = [one for one in operation.parameters if one.place != "path"]
    arguments = ["self", *(f"{_name(one)}: str" for one in path)]
    keywords = [_keyword(one) for one in sorted(named, key=lambda one: not one.is_required)]
    if (body := _body_type(operation)) is not None:
        keywords.insert(0, f"body: {body}" if operation.is_body_required else f"body: {body} | None = None")
    if keywords:
        arguments += ["*", *keywords]
    start, wait = ("async def", "await ") if is_async else ("def", "")
    returns = _result_type(operation)
    call = f"{wait}self._transport.request({', '.join(_call(operation, named))})"
    return [
        f"    {start} {operation.id}({', '.join(arguments)}) -> {returns}:",
        f'        """{docstring(_sentence(operation.description))}"""',
        f"        {call}" if returns == "None" else f"        return cast({returns!r}, {call})",
    ]


def _call(operation: Operation, named: list[Parameter]) -> list[str]:
    path = re.sub(r"\{(\w+)\}", r"{quote(\1, safe='')}", operation.path)
    query = ", ".join(f'"{one.name}": {_name(one)}' for one in named if one.place == "query")
    headers = ", ".join(f'"{one.name}": {_name(one)}' for one in named if one.place == "header")
    made = [
        f'"{operation.method}"', f'{"f" if "{" in path else ""}"{path}"', f'"{operation.repeat}"',
        f"query={{{query}}}", f"headers={{{headers}}}",
    ]  # fmt: skip
    if _body_type(operation) is not None:
        made.append("body=body")
    if operation.is_result_bytes:
        made.append("is_bytes=True")
    return made


def _body_type(operation: Operation) -> str | None:
    if operation.is_body_bytes:
        return "bytes"
    return None if operation.body is None else _annotation(operation.body)


def _result_type(operation: Operation) -> str:
    if operation.is_result_bytes:
        return "bytes"
    return "None" if operation.result is None else _annotation(operation.result)


def _keyword(parameter: Parameter) -> str:
    annotation = _annotation(parameter.schema)
    if parameter.is_required:
        return f"{_name(parameter)}: {annotation}"
    return f"{_name(parameter)}: {annotation.removesuffix(' | None')} | None = None"


def _annotation(schema: JsonObject) -> str:
    return type_of(schema, "types.")


def _name(parameter: Parameter) -> str:
    return parameter.name.lower().replace("-", "_")


def _sentence(text: str) -> str:
    """The first paragraph of a description, in one line."""
    return " ".join(text.partition("\n\n")[0].split())
