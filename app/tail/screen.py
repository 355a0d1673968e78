"""Screens of `turnkeep tail`: plain lines for a pipe, or a terminal with growing text."""

import sys
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from app.tail.view import OpenText, TailEntry, View, without_controls

_BY_ROLE: Final = {"user": "bold cyan", "assistant": "bold green", "tool": "bold yellow", "system": "bold magenta"}
_MIN_LINES: Final = 3


class LineScreen:
    """Final turns as lines, for a pipe or a file. The state of the connection goes to standard error."""

    def entry(self, entry: TailEntry) -> None:
        """Print a turn, or the change of one."""
        print_line(f"{entry.heading}: {entry.text}")

    def refresh(self) -> None:
        """Show the current text of the open turns; lines show only final turns."""

    def status(self, sentence: str | None) -> None:
        """Show the state of the connection; None: connected."""
        if sentence is not None:
            sys.stderr.write(f"turnkeep: {sentence}\n")

    def close(self) -> None:
        """Restore the terminal."""


class TerminalScreen(LineScreen):
    """Final turns that scroll, above the open turns with the end of their text."""

    def __init__(self, view: View, console: Console) -> None:
        self._view = view
        self._console = console
        self._sentence: str | None = "connecting"
        self._live = Live(console=console, get_renderable=self._render, auto_refresh=False, transient=True)
        self._live.start()

    def entry(self, entry: TailEntry) -> None:
        """Print a turn, or the change of one, above the open turns."""
        if not entry.role:
            self._console.print(Text(f"{entry.heading} {entry.text}", style="dim italic"))
            return
        heading = Text(entry.heading, style=_BY_ROLE.get(entry.role, "bold"))
        if entry.details:
            heading.append(f"  {entry.details}", style="dim not bold")
        self._console.print(heading)
        self._console.print(Text(entry.text, style="" if entry.change == "said" else "dim"))
        self._console.print()

    def refresh(self) -> None:
        """Draw the open turns again."""
        self._live.refresh()

    def status(self, sentence: str | None) -> None:
        """Show the sentence below the open turns."""
        self._sentence = sentence
        self.refresh()

    def close(self) -> None:
        """Restore the terminal, and print the text of the open turns."""
        self._live.stop()
        for turn in self._view.open.values():
            self._console.print(_heading(turn))
            self._console.print(Text(turn.text))

    def _render(self) -> Group:
        turns = list(self._view.open.values())
        lines = max(_MIN_LINES, (self._console.height - 2) // max(1, len(turns)) - 1)
        parts: list[Text | _End] = [part for turn in turns for part in (_heading(turn), _End(turn, lines))]
        if self._sentence is not None:
            parts.append(Text(self._sentence, style="dim italic"))
        return Group(*parts)


class _End:
    """The last lines of the text of an open turn."""

    def __init__(self, turn: OpenText, lines: int) -> None:
        self._turn = turn
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # only the visible end is wrapped, since wrapping a long text is slow
        end = self._turn.text[-self._lines * options.max_width :]
        yield from Text(end + "▌").wrap(console, options.max_width)[-self._lines :]


def print_line(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _heading(turn: OpenText) -> Text:
    return Text(f"{without_controls(turn.actor)} …", style=_BY_ROLE.get(turn.role, "bold"))
