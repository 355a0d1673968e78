"""What a run measures, as values: one figure per operation, merged over rounds, stored as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel

Field = Literal["p50_ms", "p95_ms", "per_second", "server_cpu_ms", "postgres_cpu_ms", "cpu_ms", "mib"]


class Figure(BaseModel):
    """One operation, measured. Times are in milliseconds, CPU is per request, memory in MiB.

    `items`: how many turns or texts one request carries. `floor`: name of the figure that this one is compared with.
    """

    name: str
    part: str
    loop: Literal["closed", "open", "none"] = "closed"
    clients: int = 1
    items: int = 1
    requests: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    per_second: float | None = None
    server_cpu_ms: float | None = None
    postgres_cpu_ms: float | None = None
    mib: float | None = None
    floor: str | None = None

    def value(self, field: Field) -> float | None:
        """Return one value; `cpu_ms` is that of the server and Postgres together, `per_second` counts items."""
        match field:
            case "cpu_ms":
                if self.server_cpu_ms is None or self.postgres_cpu_ms is None:
                    return None
                return self.server_cpu_ms + self.postgres_cpu_ms
            case "per_second":
                return None if self.per_second is None else self.per_second * self.items
            case _:
                value: float | None = getattr(self, field)
                return value


class Machine(BaseModel):
    """Where a run was made: cores, memory, and the versions of what matters."""

    processor: str
    cores: int
    memory_gib: float
    load_before: float
    versions: dict[str, str]


class Run(BaseModel):
    """All figures of one run."""

    at: str
    commit: str
    quick: bool
    rounds: int
    machine: Machine
    figures: list[Figure]

    def by_name(self) -> dict[str, Figure]:
        """Return the figures by their names."""
        return {figure.name: figure for figure in self.figures}


class PeerFigure(BaseModel):
    """One operation of Turnkeep and of a peer, measured in alternation; milliseconds, or requests per second."""

    peer: str
    operation: str
    messages: int
    unit: Literal["ms", "per second"]
    turnkeep: float
    peer_value: float

    @property
    def ratio(self) -> float:
        """Turnkeep's time divided by the peer's: below 1, Turnkeep is faster."""
        if self.unit == "ms":
            return self.turnkeep / self.peer_value
        return self.peer_value / self.turnkeep


class PeerRun(BaseModel):
    """All figures of one comparison with peers. `versions`: what was run; `failed`: reasons of those that did not."""

    at: str
    commit: str
    machine: Machine
    versions: dict[str, str]
    failed: dict[str, str]
    figures: list[PeerFigure]


def merge(rounds: Sequence[Figure]) -> Figure:
    """Return one figure whose values are the medians over the rounds, and whose requests are their sum."""
    values: dict[str, float] = {}
    for field in ("p50_ms", "p95_ms", "per_second", "server_cpu_ms", "postgres_cpu_ms", "mib"):
        measured = [value for figure in rounds if (value := getattr(figure, field)) is not None]
        if measured:
            values[field] = round(median(measured), 4)
    return rounds[0].model_copy(update={**values, "requests": sum(figure.requests for figure in rounds)})


def ratio(figures: Mapping[str, Figure], name: str, field: Field, *, to: str | None) -> float | None:
    """Divide a value of a figure by the same value of another one; None if either is missing or zero."""
    if to is None or name not in figures or to not in figures:
        return None
    above, below = figures[name].value(field), figures[to].value(field)
    return above / below if above is not None and below else None


def load_run(path: Path) -> Run | None:
    """Read a run that was stored, or None if there is none."""
    return Run.model_validate_json(path.read_bytes()) if path.is_file() else None


def load_peers(path: Path) -> PeerRun | None:
    """Read a comparison with peers that was stored, or None if there is none."""
    return PeerRun.model_validate_json(path.read_bytes()) if path.is_file() else None
