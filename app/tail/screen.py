"""What `turnkeep tail` shows: frames as lines of JSON, plain lines for a pipe, or a terminal with text as it grows."""

import sys
from typing import Final, Protocol

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from app.core.times import format_time
from app.tail.view import OpenText, Told, View
from app.tail.wording import harmless, open_text, turn_text

_BY_ROLE: Final = {"user": "bold cyan", "assistant": "bold green", "tool": "bold yellow", "system": "bold magenta"}
_FEWEST_LINES: Final = 3


class Screen(Protocol):
    """Something that shows what is followed."""

    def frame(self, text: str) -> None:
        """Show a frame as it came."""

    def told(self, told: Told) -> None:
        """Show what is so for good."""

    def refresh(self) -> None:
        """Show the open turns as they are now."""

    def status(self, sentence: str | None) -> None:
        """Show how the connection is; None: well."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Raw:
    """Every frame as a line of JSON."""

    def frame(self, text: str) -> None:
        """Print it as it came."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def told(self, told: Told) -> None:
        """Nothing: the frame has been printed."""

    def refresh(self) -> None:
        """Nothing: the same."""

    def status(self, sentence: str | None) -> None:
        """Tell it beside the lines."""
        if sentence is not None:
            sys.stderr.write(f"turnkeep: {sentence}\n")

    def close(self) -> None:
        """Nothing was changed."""


class Plain:
    """Turns as they end, for a pipe or a file."""

    def frame(self, text: str) -> None:
        """Nothing: only turns are shown."""

    def told(self, told: Told) -> None:
        """Print a turn, or what became of one."""
        sys.stdout.write(f"{_heading(told)}: {_saying(told)}\n")
        sys.stdout.flush()

    def refresh(self) -> None:
        """Nothing: a line that is written stays."""

    def status(self, sentence: str | None) -> None:
        """Tell it beside the lines."""
        if sentence is not None:
            sys.stderr.write(f"turnkeep: {sentence}\n")

    def close(self) -> None:
        """Nothing was changed."""


class Terminal:
    """Turns scroll by; below them stands what is being written, each writer with the end of its text."""

    def __init__(self, view: View, console: Console) -> None:
        self._view = view
        self._console = console
        self._sentence: str | None = "connecting"
        self._live = Live(console=console, get_renderable=self._render, auto_refresh=False, transient=True)
        self._live.start()

    def frame(self, text: str) -> None:
        """Nothing: turns and texts are shown."""

    def told(self, told: Told) -> None:
        """Print a turn, or what became of one, above what is being written."""
        if told.turn is None and told.open_turn is None:
            self._console.print(Text(f"{_heading(told)} {_saying(told)}", style="dim italic"))
            return
        heading = Text(_heading(told), style=_style(told))
        if told.turn is not None:
            heading.append(f"  {format_time(told.turn.occurred_at)}  #{told.turn.seq}", style="dim not bold")
        self._console.print(heading)
        self._console.print(Text(_saying(told), style="" if told.change == "said" else "dim"))
        self._console.print()

    def refresh(self) -> None:
        """Draw the lower part again."""
        self._live.refresh()

    def status(self, sentence: str | None) -> None:
        """Show it below everything."""
        self._sentence = sentence
        self.refresh()

    def close(self) -> None:
        """Give the terminal back, with what is being written still to be read."""
        self._live.stop()
        for turn in self._view.open.values():
            self._console.print(Text(f"{harmless(turn.actor)} …", style=_BY_ROLE.get(turn.role, "bold")))
            self._console.print(Text(open_text(turn)))

    def _render(self) -> Group:
        turns = list(self._view.open.values())
        lines = max(_FEWEST_LINES, (self._console.height - 2) // max(1, len(turns)) - 1)
        parts: list[Text | _End] = []
        for turn in turns:
            parts.append(Text(f"{harmless(turn.actor)} …", style=_BY_ROLE.get(turn.role, "bold")))
            parts.append(_End(turn, lines))
        if self._sentence is not None:
            parts.append(Text(self._sentence, style="dim italic"))
        return Group(*parts)


class _End:
    """The last lines of an open turn's text, as many as there is room for."""

    def __init__(self, turn: OpenText, lines: int) -> None:
        self._turn = turn
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # no more than can be seen is wrapped, however long the text has grown
        end = open_text(self._turn)[-self._lines * options.max_width :]
        yield from Text(end + "▌").wrap(console, options.max_width)[-self._lines :]


def _heading(told: Told) -> str:
    actor = told.turn.actor if told.turn is not None else told.open_turn.actor if told.open_turn is not None else ""
    return harmless(actor) or told.turn_id


def _style(told: Told) -> str:
    role = told.turn.role if told.turn is not None else told.open_turn.role if told.open_turn is not None else ""
    return _BY_ROLE.get(role, "bold")


def _saying(told: Told) -> str:
    if told.change == "said" and told.turn is not None:
        return turn_text(told.turn)
    if told.change == "given up":
        return f"{'' if told.open_turn is None else open_text(told.open_turn)} (given up)".lstrip()
    return "(replaced by another turn)" if told.change == "replaced" else "(erased)"
