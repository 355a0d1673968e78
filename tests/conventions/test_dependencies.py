"""Dependencies are used by their manuals: no private names, and no subclass of a class that is not documented.

What is in `EXCEPTIONS` can break with any release of its package, which has a `~=` bound below a minor release.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "app").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Exemption(NamedTuple):
    """A package whose inside is used, by which modules, and why."""

    package: str
    modules: frozenset[str]
    reason: str


EXCEPTIONS: Final = (
    Exemption(
        "uvicorn",
        frozenset({"app/routers/http/uvicorn_protocols.py"}),
        "uvicorn has no limits of time for heads, bodies and readers that stall, and parses all that a peer has sent",
    ),
    Exemption(
        "sqlalchemy",
        frozenset({"app/core/database/queries.py"}),
        "statements are compiled once and run by asyncpg: a third of the cost of Core's own execution",
    ),
)
DOCUMENTED: Final = frozenset(
    {
        "fastapi.Request", "fastapi.Response", "fastapi.responses.StreamingResponse", "fastapi.routing.APIRoute",
        "fastapi.security.base.SecurityBase",
        "httpcore2.AsyncNetworkBackend",
        "opentelemetry.sdk.trace.export.SpanExporter", "opentelemetry.sdk.trace.sampling.Sampler",
        "opentelemetry.trace.propagation.tracecontext.TraceContextTextMapPropagator",
        "prometheus_client.registry.Collector",
        "pydantic.BaseModel", "pydantic.RootModel", "pydantic.json_schema.GenerateJsonSchema",
        "pydantic_settings.BaseSettings",
        "sqlalchemy.types.UserDefinedType",
        "uvicorn.Server",
    }
)  # fmt: skip
"""Classes that their packages document as base classes."""
RELIED_ON: Final = frozenset(
    {
        "asyncpg", "fastapi", "mcp", "nats-py", "onnxruntime", "pydantic", "sqlalchemy", "starlette", "tiktoken",
        "uvicorn", "websockets",
    }
)  # fmt: skip
NAMED_TUPLE: Final = frozenset({"_asdict", "_fields", "_replace", "_make"})
EXEMPT: Final = {module for exemption in EXCEPTIONS for module in exemption.modules}


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that a module has of a dependency, and its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]
        else:
            continue
        for name, full_name in names:
            if full_name.partition(".")[0] not in {*sys.stdlib_module_names, "app"}:
                yield name, full_name


def is_own(receiver: ast.expr) -> bool:
    """Whether a private name of this receiver belongs to the class that uses it."""
    return ast.unparse(receiver) in {"self", "cls", "super()"}


def violations(tree: ast.AST) -> Iterator[str]:
    """Yield what a module uses of the inside of others: of its dependencies, or of another class."""
    names: Mapping[str, str] = dict(imported_names(tree))
    for full_name in names.values():
        if any(part.startswith("_") and not part.startswith("__") for part in full_name.split(".")):
            yield full_name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch("_[a-zA-Z0-9][a-zA-Z0-9_]*", node.attr):
            if node.attr not in NAMED_TUPLE and not is_own(node.value):
                yield ast.unparse(node)
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                class_name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
                head, _, rest = class_name.partition(".")
                if head in names:
                    full_name = f"{names[head]}.{rest}" if rest else names[head]
                    if full_name not in DOCUMENTED:
                        yield full_name


def test_no_module_uses_the_inside_of_a_dependency() -> None:
    used = {str(path.relative_to(ROOT)): list(violations(ast.parse(path.read_text()))) for path in FILES}
    assert {module: names for module, names in used.items() if names and module not in EXEMPT} == {}
    assert {module for module, names in used.items() if names} == EXEMPT, "an exception that is not needed"
    assert len(EXCEPTIONS) <= 3


@pytest.mark.parametrize(
    "source",
    [
        "from starlette._utils import get_route_path",
        "import fastapi._compat",
        "from asyncpg.protocol import Protocol\nclass Filter(Protocol): pass",
        "import nats\nclass Safe(nats.aio.client.Client): pass",
        "client._flush_queue.put(1)",
    ],
)
def test_each_kind_of_use_is_found(source: str) -> None:
    assert list(violations(ast.parse(source)))


def test_packages_whose_behaviour_is_relied_on_have_an_upper_bound() -> None:
    bounds = {
        match[1]: match[2]
        for dependency in PROJECT["dependencies"]
        if (match := re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z]+\])?~=([0-9.]+)", dependency))
    }
    assert bounds.keys() >= RELIED_ON
    # a minor release of one whose inside is used is refused too
    assert all(bounds[exemption.package].count(".") == 2 for exemption in EXCEPTIONS)
