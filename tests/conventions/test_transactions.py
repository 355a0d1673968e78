"""A service opens its transactions, or a part runs in those of others."""

import ast
from pathlib import Path

APP = Path(__file__).parents[2] / "app"
BOTH = {
    "Flusher": "the text of a turn is also written in the transaction that takes the turn over",
    "ImportRunner": "an operation that ends calls it in its own transaction",
}
"""Classes that are both, with the reason."""


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [method for method in node.body if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)]


def _opens(method: ast.AST) -> bool:
    calls = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
    names = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    return bool(names & {"transaction", "across_tenants", "snapshot"})


def _takes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)}
    return "tx" in names and not method.name.startswith("_")


def test_no_class_opens_transactions_and_runs_in_those_of_others() -> None:
    both = {
        node.name
        for package in ("conversations", "governance", "transfer")
        for path in (APP / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(map(_opens, _methods(node))) and any(map(_takes, _methods(node)))
    }
    assert both == BOTH.keys()
