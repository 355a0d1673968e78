"""Progress of a transfer on standard error: bytes of an upload, records of an export or an import."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class TransferProgress:
    """One line of progress, shown only in a terminal. It disappears at the end."""

    def __init__(self, name: str) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[shown]}"))
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task(name, total=None, shown="")
        self._bytes = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def counted(self, part: bytes, *, total: int | None = None) -> bytes:
        """Count the bytes of a part, and return it."""
        self._bytes += len(part)
        self._bar.update(self._task, completed=self._bytes, total=total, shown=f"{self._bytes / 2**20:.1f} MiB")
        return part

    def records(self, done: int, total: int | None = None) -> None:
        """Show a number of records."""
        shown = f"{done} records" if total is None else f"{done} of {total} records"
        self._bar.update(self._task, completed=done, total=total, shown=shown)

    def say(self, sentence: str) -> None:
        """Print a sentence above the line."""
        self._bar.console.print(f"turnkeep: {sentence}", markup=False, highlight=False)
