"""Output and questions of `turnkeep reembed`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from app.core.ids import TenantId
from app.index.schemas import EmbeddingSpace
from app.recall.schemas import SpaceComparisonResult
from app.settings import Settings
from app.worker.reembedding import Reembedding, reembedding

_K = 10
_SHOWN_QUERIES = 10
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ReembedOptions:
    """Options of the command. `ask` asks the user a question and returns whether the answer is yes."""

    queries: Sequence[str]
    yes: bool
    force: bool
    status: bool
    rollback: bool
    drop: int | None
    ask: Callable[[str], bool]


async def move(settings: Settings, tenant_id: TenantId, options: ReembedOptions) -> None:
    """Run the command and print its results. Raises the errors of the steps."""
    console = Console()
    async with reembedding(settings, tenant_id) as steps:
        if options.status:
            console.print(_table(await steps.spaces()))
        elif options.rollback:
            space = await steps.roll_back(force=options.force)
            console.print(f"Searched again: {_named(space)}.")
        elif options.drop is not None:
            with console.status("deleting vectors"):
                space = await steps.drop(options.drop, progress=lambda _: None)
            console.print(f"Dropped: {_named(space)}.")
        else:
            await _move(steps, console, options)


async def _move(steps: Reembedding, console: Console, options: ReembedOptions) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("vectors", total=None)

        def show(space: EmbeddingSpace) -> None:
            bar.update(task, description=_named(space), completed=space.covered, total=space.entries or 1)

        space = await steps.fill(progress=show)
    if space.covered < space.entries:
        console.print(f"{space.entries - space.covered} of {space.entries} entries have no vectors{_failed(space)}.")
    texts, result = await steps.compare(space.id, queries=options.queries, k=_K)
    console.print("There is nothing to compare." if result is None else _comparison(texts, result))
    if not options.yes and not options.ask(f"Search {_named(space)} from now on?"):
        console.print("Nothing was switched. The space is filled and kept up to date; run this again to switch.")
        return
    space = await steps.switch(space.id, force=options.force)
    console.print(
        f"Searched now: {_named(space)}. To go back: turnkeep reembed --rollback. To finish: set"
        " TURNKEEP_EMBEDDER and its settings to the new model, and delete the old space with --drop."
    )


def _named(space: EmbeddingSpace) -> str:
    return f"{space.provider}/{space.model}/{space.dimensions} (space {space.id})"


def _failed(space: EmbeddingSpace) -> str:
    parked = f", {space.jobs_parked} jobs parked" if space.jobs_parked else ""
    return f"{parked} ({space.jobs_error})" if space.jobs_error else parked


def _table(spaces: Sequence[EmbeddingSpace]) -> Table:
    table = Table("id", "space", "state", "done", "vectors", "jobs", "index", "settings here")
    for space in spaces:
        about = "" if space.exact else "about "
        table.add_row(
            str(space.id),
            f"{space.provider}/{space.model}/{space.dimensions}",
            space.state.value,
            f"{about}{space.covered} of {space.entries} ({space.share:.1%})",
            f"{about}{space.vectors}",
            f"{space.jobs_waiting} waiting{_failed(space)}",
            "stands" if space.index_ready else "none",
            "searched" if space.searched_here else "yes" if space.configured else "no",
        )
    return table


def _comparison(texts: Sequence[str], result: SpaceComparisonResult) -> Table:
    title = f"the first {result.k} hits: {result.overlap:.0%} the same, rank agreement {result.rank_agreement:.2f}"
    table = Table("query", "the same", "rank agreement", "not taken part", title=title)
    for text, compared in list(zip(texts, result.queries, strict=True))[:_SHOWN_QUERIES]:
        shown = " ".join(text.split())[:_SHOWN_CHARACTERS]
        table.add_row(
            Text(shown), f"{compared.overlap:.0%}", f"{compared.rank_agreement:.2f}", " ".join(compared.degraded)
        )
    return table
