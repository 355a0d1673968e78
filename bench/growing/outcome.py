"""What a run of `growth.py` found: tables and notes, printed at once and written as Markdown at the end."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


class Outcome:
    """Tables and notes in the order in which they were made."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[str] = []

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; all columns but the first are numbers."""
        shown = Table(*columns, title=title, title_justify="left")
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in rows:
            shown.add_row(*row)
        self._console.print(shown)
        lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
        self._lines += [f"## {title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""]

    def note(self, text: str) -> None:
        """Add a paragraph."""
        self._console.print(text, soft_wrap=True)
        self._lines += [text, ""]

    def write(self, path: Path, head: Sequence[str]) -> None:
        """Write everything below a head."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*head, "", *self._lines]).rstrip() + "\n")
