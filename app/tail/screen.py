"""Screens of `turnkeep tail`: frames as lines of JSON, plain lines for a pipe, or a terminal with growing text."""

import sys
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from app.core.times import format_time
from app.tail.formatting import open_text, replace_control_characters, turn_text
from app.tail.view import OpenText, TailEntry, View

_BY_ROLE: Final = {"user": "bold cyan", "assistant": "bold green", "tool": "bold yellow", "system": "bold magenta"}
_MIN_LINES: Final = 3


class Screen:
    """An output of the conversation. This one shows nothing but the state of the connection, on standard error."""

    def frame(self, text: str) -> None:
        """Show a raw frame."""

    def entry(self, entry: TailEntry) -> None:
        """Show a final entry."""

    def refresh(self) -> None:
        """Show the current text of the open turns."""

    def status(self, sentence: str | None) -> None:
        """Show the state of the connection; None: connected."""
        if sentence is not None:
            sys.stderr.write(f"turnkeep: {sentence}\n")

    def close(self) -> None:
        """Restore the terminal."""


class JsonScreen(Screen):
    """Every frame as a line of JSON."""

    def frame(self, text: str) -> None:
        """Print the frame."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class LineScreen(Screen):
    """Final turns as lines, for a pipe or a file."""

    def entry(self, entry: TailEntry) -> None:
        """Print a turn, or the change of one."""
        sys.stdout.write(f"{_heading(entry)}: {_entry_text(entry)}\n")
        sys.stdout.flush()


class TerminalScreen(Screen):
    """Final turns that scroll, above the open turns with the end of their text."""

    def __init__(self, view: View, console: Console) -> None:
        self._view = view
        self._console = console
        self._sentence: str | None = "connecting"
        self._live = Live(console=console, get_renderable=self._render, auto_refresh=False, transient=True)
        self._live.start()

    def entry(self, entry: TailEntry) -> None:
        """Print a turn, or the change of one, above the open turns."""
        if entry.turn is None and entry.open_turn is None:
            self._console.print(Text(f"{_heading(entry)} {_entry_text(entry)}", style="dim italic"))
            return
        heading = Text(_heading(entry), style=_style(entry))
        if entry.turn is not None:
            heading.append(f"  {format_time(entry.turn.occurred_at)}  #{entry.turn.seq}", style="dim not bold")
        self._console.print(heading)
        self._console.print(Text(_entry_text(entry), style="" if entry.change == "said" else "dim"))
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
            self._console.print(
                Text(f"{replace_control_characters(turn.actor)} …", style=_BY_ROLE.get(turn.role, "bold"))
            )
            self._console.print(Text(open_text(turn)))

    def _render(self) -> Group:
        turns = list(self._view.open.values())
        lines = max(_MIN_LINES, (self._console.height - 2) // max(1, len(turns)) - 1)
        parts: list[Text | _End] = []
        for turn in turns:
            parts.append(Text(f"{replace_control_characters(turn.actor)} …", style=_BY_ROLE.get(turn.role, "bold")))
            parts.append(_End(turn, lines))
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
        end = open_text(self._turn)[-self._lines * options.max_width :]
        yield from Text(end + "▌").wrap(console, options.max_width)[-self._lines :]


def _heading(entry: TailEntry) -> str:
    actor = entry.turn.actor if entry.turn is not None else entry.open_turn.actor if entry.open_turn is not None else ""
    return replace_control_characters(actor) or entry.turn_id


def _style(entry: TailEntry) -> str:
    role = entry.turn.role if entry.turn is not None else entry.open_turn.role if entry.open_turn is not None else ""
    return _BY_ROLE.get(role, "bold")


def _entry_text(entry: TailEntry) -> str:
    if entry.change == "said" and entry.turn is not None:
        return turn_text(entry.turn)
    if entry.change == "given up":
        return f"{'' if entry.open_turn is None else open_text(entry.open_turn)} (given up)".lstrip()
    return "(replaced by another turn)" if entry.change == "replaced" else "(erased)"
