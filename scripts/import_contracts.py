"""Import contracts that import-linter does not bring itself."""

from collections.abc import Sequence
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils


class EntryContract(Contract):
    """A capability is imported from outside by its `service` or its `schemas` only.

    Options:
        capabilities: packages that are entered so. A package inside another one may be listed too: it then has an entry
            of its own. Imports within the same top-level package are not checked; that is what layers are for.
        composition: modules that build the object graph and may import anything.
        ignore_imports: exceptions, `importer -> imported`. One that matches no import breaks the contract.
    """

    type_name = "entry"

    capabilities = fields.ListField(subfield=fields.StringField())
    composition = fields.ListField(subfield=fields.StringField())
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001 - the signature is the library's
        """Find every import that goes past an entry."""
        contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,  # type: ignore[arg-type]
            unmatched_alerting=contract_utils.AlertLevel.ERROR,  # type: ignore[arg-type]
        )
        capabilities: Sequence[str] = self.capabilities  # type: ignore[assignment]
        composition: Sequence[str] = self.composition  # type: ignore[assignment]
        past = [
            f"{importer} -> {imported}"
            for imported in sorted(graph.modules)
            if not is_entry(imported, capabilities)
            for importer in sorted(graph.find_modules_that_directly_import(imported))
            if importer not in composition and top_level(importer) != top_level(imported)
        ]
        return ContractCheck(kept=not past, metadata={"past": past})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line per import."""
        past: list[Any] = check.metadata["past"]
        for one in past:
            output.print_error(one)


def is_entry(module: str, capabilities: Sequence[str]) -> bool:
    """Return whether a module may be imported by other capabilities: it is an entry, or belongs to no capability."""
    owners = [one for one in capabilities if module.startswith(f"{one}.")]
    if not owners:
        return True
    return module.removeprefix(max(owners, key=len)).split(".")[1] in {"service", "schemas"}


def top_level(module: str) -> str:
    """Return the package below `app` that a module belongs to."""
    return ".".join(module.split(".")[:2])
