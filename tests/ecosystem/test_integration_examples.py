"""The guide to the integrations prints the programs that run with the real frameworks (`make ecosystem`)."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "openapi/clients/python"
PACKAGE = CLIENT / "src/turnkeep_client"
GUIDE = ROOT / "docs/guides/integrations.md"
SHARED = {"__init__", "messages", "history", "response_items", "store_items"}


def integrations() -> list[str]:
    return sorted(path.stem for path in (PACKAGE / "integrations").glob("*.py") if path.stem not in SHARED)


def imported(module: Path) -> set[str]:
    """The top-level packages that a module imports when it is imported."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    return names


def test_each_integration_has_its_example_in_the_guide_its_check_and_its_extra() -> None:
    printed = re.findall(r"^```py\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    extras = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    examples: list[str] = []
    for name in integrations():
        examples += [path.read_text() for path in (ROOT / "tests/ecosystem/clients").glob(f"*_{name}.py")]
        assert (ROOT / f"tests/ecosystem/integrations/check_{name}.py").exists()
        extra = name.replace("_", "-")
        assert extra in extras
        assert f"pip install 'turnkeep-client[{extra}]'" in GUIDE.read_text()
    assert len(examples) == len(integrations())
    assert sorted(printed) == sorted(examples)


def test_the_client_imports_no_framework() -> None:
    known = {"turnkeep_client", "httpx", "websockets", *sys.stdlib_module_names}
    for module in [*PACKAGE.glob("*.py"), *(PACKAGE / "integrations" / f"{name}.py" for name in SHARED)]:
        assert imported(module) <= known, module
        assert "turnkeep_client.integrations" not in module.read_text() or module.parent.name == "integrations"
