"""What is measured, added up: recall, latencies, violations, failures; printed as tables, given as JSON.

Pure but for printing. Holds numbers, codes and the dataset's category names only, never content.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from client import RequestFailedError
from pydantic import JsonValue
from rich.console import Console
from rich.table import Table

CUTS: Final = (5, 10, 25, 50)
OVERALL: Final = "all"


def percentile(values: Sequence[float], share: float) -> float:
    """Give the smallest value that at least `share` of the values do not exceed; 0 of nothing."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else 0.0


@dataclass(slots=True)
class Failures:
    """Calls that failed, by call, status and code."""

    counts: Counter[tuple[str, int, str]] = field(default_factory=Counter[tuple[str, int, str]])

    def record(self, error: RequestFailedError) -> None:
        """Count one."""
        self.counts[error.call, error.status, error.code] += 1

    def as_json(self) -> JsonValue:
        """One object per kind of failure."""
        return [
            {"call": call, "status": status, "code": code, "count": count}
            for (call, status, code), count in sorted(self.counts.items())
        ]


@dataclass(slots=True)
class Recalled:
    """Evidence recall: of each question, the share of its evidence among the first k hits."""

    shares: defaultdict[str, list[tuple[float, ...]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[float, ...]]](list)
    )
    skipped: int = 0
    degraded: Counter[str] = field(default_factory=Counter[str])

    def record(self, category: str, evidence: Sequence[str], hits: Sequence[str]) -> None:
        """Count one question."""
        places = {hit: paths for paths, hit in enumerate(hits)}
        found = [places.get(key, len(hits) + CUTS[-1]) for key in evidence]
        shares = tuple(sum(paths < cut for paths in found) / len(found) for cut in CUTS)
        self.shares[category].append(shares)
        self.shares[OVERALL].append(shares)

    def means(self, category: str) -> list[float]:
        """Mean recall in percent at each cut."""
        rows = self.shares[category]
        return [round(100 * sum(row[cut] for row in rows) / len(rows), 1) for cut in range(len(CUTS))]

    def as_json(self) -> JsonValue:
        """By category: how many questions, and recall at each cut."""
        figures: dict[str, JsonValue] = {}
        for name in sorted(self.shares):
            row: dict[str, JsonValue] = {"questions": len(self.shares[name])}
            row.update({f"recall@{cut}": mean for cut, mean in zip(CUTS, self.means(name), strict=True)})
            figures[name] = row
        return {"by_category": figures, "without_evidence": self.skipped, "degraded": dict(self.degraded)}


@dataclass(slots=True)
class Contexts:
    """Contexts built and recounted. A violation is a context over its budget, or larger than it says it is."""

    built: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    fill: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict[int, list[float]](list))
    over_budget: int = 0
    understated: int = 0
    overstated: int = 0
    repeated_turns: int = 0
    too_small: int = 0
    worst: int = 0
    left_out: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict[int, list[float]](list))
    """By budget, how many turns each context leaves out and counts in its gap."""
    miscounted: int = 0
    """Contexts whose gap is not what they leave out."""
    degraded: Counter[str] = field(default_factory=Counter[str])
    evidence: defaultdict[tuple[int, int | None], list[float]] = field(
        default_factory=lambda: defaultdict[tuple[int, int | None], list[float]](list)
    )

    def record(
        self,
        budget: int,
        shape: str,
        *,
        used: int,
        counted: int,
        exact: bool,
        turn_ids: Sequence[str],
        gap_turns: int,
        gap_is_true: bool,
    ) -> None:
        """Count one context, which says that it leaves out `gap_turns` turns."""
        self.left_out[budget].append(gap_turns)
        self.miscounted += not gap_is_true
        self.built[budget, shape] += 1
        self.fill[budget].append(counted / budget)
        self.over_budget += used > budget or counted > budget
        self.understated += counted > used
        self.overstated += exact and counted < used
        self.repeated_turns += len(set(turn_ids)) < len(turn_ids)
        self.worst = max(self.worst, counted - budget)

    @property
    def violations(self) -> int:
        """How many contexts broke a promise about their size, showed a turn twice or miscounted their gap."""
        return self.over_budget + self.understated + self.repeated_turns + self.miscounted

    def evidence_shown(self, budget: int, window: int | None) -> float:
        """Mean share of a question's evidence that stood in its context, in percent."""
        shares = self.evidence.get((budget, window), [])
        return round(100 * sum(shares) / len(shares), 1) if shares else 0.0

    def as_json(self) -> JsonValue:
        """Give the counts, how full contexts were (median share of the budget), how much evidence they showed."""
        return {
            "built": self.built.total(),
            "by_budget_and_format": {f"{budget}/{shape}": n for (budget, shape), n in sorted(self.built.items())},
            "over_budget": self.over_budget,
            "understated": self.understated,
            "overstated": self.overstated,
            "repeated_turns": self.repeated_turns,
            "miscounted_gaps": self.miscounted,
            "left_out_median": {str(budget): percentile(some, 0.5) for budget, some in sorted(self.left_out.items())},
            "budget_too_small": self.too_small,
            "most_tokens_over": max(0, self.worst) if self.over_budget else 0,
            "evidence_shown": {
                f"{budget}/recent_turns {window or 'default'}": self.evidence_shown(budget, window)
                for budget, window in self.evidence
            },
            "fill_median": {str(budget): round(percentile(fill, 0.5), 3) for budget, fill in sorted(self.fill.items())},
            "degraded": dict(self.degraded),
        }


@dataclass(slots=True)
class Latencies:
    """Seconds by operation, one list each; `floor_of` names the raw operation that each is held against."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict[str, list[float]](list))

    def record(self, name: str, seconds: float) -> None:
        """Count one."""
        self.seconds[name].append(seconds)

    def rows(self, floors: dict[str, str]) -> list[tuple[str, int, float, float, float, float | None]]:
        """Name, count, mean, p50 and p95 in ms, ratio of the medians to the floor's where there is one."""
        rows: list[tuple[str, int, float, float, float, float | None]] = []
        for name, values in self.seconds.items():
            half = percentile(values, 0.5)
            floor = percentile(self.seconds.get(floors.get(name, ""), []), 0.5)
            rows.append((
                name,
                len(values),
                1000 * sum(values) / len(values),
                1000 * half,
                1000 * percentile(values, 0.95),
                half / floor if floor else None,
            ))  # fmt: skip
        return rows

    def as_json(self, floors: dict[str, str]) -> JsonValue:
        """One object per operation, times in milliseconds."""
        return {
            name: {
                "count": count,
                "mean_ms": round(mean, 3),
                "p50_ms": round(half, 3),
                "p95_ms": round(most, 3),
                "floor": floors.get(name),
                "ratio_to_floor": None if ratio is None else round(ratio, 2),
            }
            for name, count, mean, half, most, ratio in self.rows(floors)
        }


def print_recall(console: Console, recalled: Recalled) -> None:
    """Print recall by category and overall."""
    table = Table("evidence recall, %", *(f"R@{cut}" for cut in CUTS), "questions")
    for name in sorted(recalled.shares, key=lambda name: (name == OVERALL, name)):
        means = (f"{mean:.1f}" for mean in recalled.means(name))
        table.add_row(name, *means, str(len(recalled.shares[name])), style="bold" if name == OVERALL else None)
    console.print(table)
    console.print(
        f"{recalled.skipped} questions without evidence skipped; degraded: {dict(recalled.degraded) or 'none'}"
    )


def print_contexts(console: Console, contexts: Contexts) -> None:
    """Print what was built and what was wrong with it."""
    windows = list(dict.fromkeys(window for _, window in contexts.evidence))
    table = Table(
        "budget",
        "contexts",
        "median fill",
        "turns left out, median",
        *(f"evidence shown, recent_turns {w or 'default'}" for w in windows),
    )
    for budget in sorted(contexts.fill):
        shown = (f"{contexts.evidence_shown(budget, window):.1f} %" for window in windows)
        fill, left_out = contexts.fill[budget], f"{percentile(contexts.left_out[budget], 0.5):.0f}"
        table.add_row(f"{budget:,}", str(len(fill)), f"{percentile(fill, 0.5):.0%}", left_out, *shown)
    console.print(table)
    console.print(
        f"{contexts.violations} violations in {contexts.built.total()} contexts: {contexts.over_budget} over budget,"
        f" {contexts.understated} larger than they say, {contexts.repeated_turns} with a turn twice,"
        f" {contexts.miscounted} with a gap that is not theirs;"
        f" {contexts.overstated} smaller than they say, {contexts.too_small} refused as too small,"
        f" degraded: {dict(contexts.degraded) or 'none'}",
        style="red" if contexts.violations else "green",
    )


def print_latencies(console: Console, latencies: Latencies, floors: dict[str, str]) -> None:
    """Print latencies and their ratios to the floor."""
    table = Table("latency, ms", "p50", "p95", "mean", "n", "floor", "p50 / floor's")
    for name, count, mean, half, most, ratio in latencies.rows(floors):
        held = "" if ratio is None else f"{ratio:.1f} x"
        table.add_row(name, f"{half:.2f}", f"{most:.2f}", f"{mean:.2f}", str(count), floors.get(name, ""), held)
    console.print(table)


def print_failures(console: Console, failures: Failures) -> None:
    """Print every kind of failure."""
    for (call, status, code), count in sorted(failures.counts.items()):
        console.print(f"{count} x {call}: {status} {code}", style="red")
