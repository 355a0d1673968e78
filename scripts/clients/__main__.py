"""Write the generated modules of the client libraries into a folder: `python -m scripts.clients openapi/clients`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

from scripts.clients.document import JsonObject, operations_of
from scripts.clients.errors import write_python_errors, write_typescript_errors
from scripts.clients.python_operations import write_operations
from scripts.clients.python_types import HEADER, write_types

ROOT: Final = Path(__file__).parents[2]


def main(folder: Path) -> None:
    """Write the modules of both libraries; the types of TypeScript come from openapi-ts."""
    document = cast("JsonObject", json.loads((ROOT / "openapi/openapi.json").read_text()))
    python = folder / "python/src/turnkeep_client/generated"
    typescript = folder / "typescript/src/generated"
    for made in (python, typescript):
        made.mkdir(parents=True, exist_ok=True)
    sources = {
        "__init__.py": HEADER,
        "types.py": write_types(document),
        "operations.py": write_operations(document),
        "errors.py": write_python_errors(),
    }
    for name, source in sources.items():
        (python / name).write_text(source)
    # one form for the generated files, so that a comparison finds only changes of the API
    subprocess.run(  # noqa: S603 - the project's own ruff
        [Path(sys.executable).with_name("ruff"), "format", "--quiet", "--isolated", "--line-length=120", python],
        check=True,
    )
    (typescript / "errors.ts").write_text(write_typescript_errors())
    (typescript / "repeats.ts").write_text(_write_repeats(document))


def _write_repeats(document: JsonObject) -> str:
    """Return the table of the requests that TypeScript may send again."""
    lines = [
        "// Generated from openapi/openapi.json by `make clients`. Do not edit.",
        "// When a request may be sent again: always; with its Idempotency-Key; others only if not executed.",
        'export const REPEATS: Readonly<Record<string, "safe" | "key">> = {',
    ]
    lines += [
        f'  "{operation.method} {operation.path}": "{operation.repeat}",'
        for operation in operations_of(document)
        if operation.repeat != "unsent"
    ]
    return "\n".join([*lines, "};"]) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
