"""What an import did, in sentences: what was stored, what was there already, and what was refused and where."""

import json
from typing import Final, cast

import typer

from app.formats.schemas import JsonObject

_LISTED: Final = 20
_REFUSED: Final = b'{"type":"refused"'


def show(operation: JsonObject) -> bool:
    """Print the result of an ended import; return whether it stored all that is new."""
    result = cast("JsonObject", operation["result"] or {})
    has_ended = operation["status"] == "succeeded"
    if not has_ended:
        error = cast("JsonObject", operation["error"] or {})
        reason = f": {error['title']} [{error['code']}]" if error else "."
        typer.echo(f"turnkeep: the import has {operation['status']}{reason} What it stored stays.", err=True)
    if not result:
        return has_ended
    for sentence in _sentences(result):
        typer.echo(sentence)
    problems = cast("list[JsonObject]", result.get("problems", []))
    count = cast("int", result.get("problem_count", 0))
    if count:
        typer.echo(f"not imported: {count}", err=True)
    for problem in problems[:_LISTED]:
        typer.echo(f"  {_named(problem)}", err=True)
    if count > _LISTED:
        typer.echo(f"  and {count - _LISTED} more: see /v1/operations/{operation['id']}", err=True)
    return has_ended and not count


def _sentences(result: JsonObject) -> list[str]:
    stored = _counts(result.get("records"))
    conversations = _counts(result.get("conversations"))
    verb = "would be stored" if result.get("dry_run") else "stored"
    new = ", ".join(f"{kind} {count}" for kind, count in stored.items() if count)
    sentences = [f"{verb}: {new or 'nothing new'}"]
    existing = cast("int", result.get("existing_records", 0))
    if existing:
        there = conversations.get("existing", 0) + conversations.get("extended", 0)
        of_them = f", with {there} conversation{'' if there == 1 else 's'}" if there else ""
        sentences.append(f"{existing} record{' was' if existing == 1 else 's were'} there already{of_them}")
    if conversations.get("remapped") and conversations.get("restored"):
        sentences.append(f"conversations with new ids: {conversations['remapped']}")
    rest = cast("int", result.get("skipped_records", 0)) - existing
    if rest > 0:
        sentences.append(f"records left out: {rest}")
    return sentences


def _named(problem: JsonObject) -> str:
    """Return the type, the id, the conversation, the place and the reason of what was refused."""
    errors = cast("list[JsonObject]", problem.get("errors") or [])
    wrong = "; ".join(f"{error.get('pointer') or '/'}: {error.get('detail')}" for error in errors)
    kind, name = problem.get("type") or "record", problem.get("id")
    of = f" of conversation {problem['conversation']}" if problem.get("conversation") else ""
    where = f", line {problem['line']}" if problem.get("line") else ""
    return f"{kind}{f' {name}' if name else ''}{of}{where}: {wrong or 'it breaks a rule'}"


class RefusedLines:
    """The lines of a converted file that say what could not be read."""

    def __init__(self) -> None:
        self.count = 0
        self._listed: list[JsonObject] = []

    def add(self, line: bytes) -> None:
        """Take one line of the file."""
        if line.startswith(_REFUSED):
            self.count += 1
            if len(self._listed) < _LISTED:
                self._listed.append(cast("JsonObject", json.loads(line)))

    def show(self) -> bool:
        """Print what could not be read; return whether it is nothing."""
        for record in self._listed:
            error: JsonObject = {"pointer": record.get("pointer"), "detail": record.get("detail")}
            problem: JsonObject = {"type": record["kind"], "id": record.get("external_id"), "errors": [error]}
            problem["conversation"] = record.get("conversation_external_id")
            typer.echo(f"  {_named(problem)}", err=True)
        if self.count > _LISTED:
            typer.echo(f"  and {self.count - _LISTED} more", err=True)
        return not self.count


def _counts(value: object) -> dict[str, int]:
    return cast("dict[str, int]", value) if isinstance(value, dict) else {}
