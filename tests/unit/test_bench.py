"""`make bench`: how figures are merged, compared and reported, and one tiny run. Never how fast anything is."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # a bench is run as scripts, so its modules are on the path of a script only

from suite import report  # noqa: E402
from suite.figure import Figure, Machine, PeerFigure, PeerRun, Run, load_run, merge, ratio  # noqa: E402
from suite.plots import bar_plot, line_plot  # noqa: E402
from suite.texts import TextSource  # noqa: E402

MACHINE = Machine(processor="two cores", cores=2, memory_gib=8, load_before=0.1, versions={"python": "3.11"})


def run_of(*figures: Figure, at: str = "2026-01-01 00:00 UTC") -> Run:
    return Run(at=at, commit="abc", quick=False, rounds=3, machine=MACHINE, figures=list(figures))


def test_rounds_are_merged_by_their_medians() -> None:
    rounds = [Figure(name="a", part="p", p50_ms=value, requests=10) for value in (9.0, 1.0, 2.0)]

    assert merge(rounds).p50_ms == 2.0
    assert merge(rounds).requests == 30
    assert merge(rounds).server_cpu_ms is None


def test_a_ratio_needs_both_figures() -> None:
    figures = {"a": Figure(name="a", part="p", p50_ms=6), "b": Figure(name="b", part="p", p50_ms=3)}

    assert ratio(figures, "a", "p50_ms", to="b") == 2
    assert ratio(figures, "a", "p50_ms", to="c") is None
    assert ratio(figures, "a", "cpu_ms", to="b") is None


def test_items_count_in_throughput() -> None:
    assert Figure(name="append 50", part="p", per_second=4, items=50).value("per_second") == 200


def test_the_second_run_gives_ratios_to_the_first_and_keeps_the_parts_it_did_not_run(tmp_path: Path) -> None:
    report.write(tmp_path, run_of(Figure(name="append 1", part="a", p50_ms=8), Figure(name="x", part="b", p50_ms=1)))
    written = report.write(tmp_path, run_of(Figure(name="append 1", part="a", p50_ms=4)))

    assert "| append 1 |  | 4.00 |  |  |  |  |  |  |  | 0.50 |  |" in written.read_text()
    assert "| append 1, p50 | 4.00 | ≤ 6 ms | yes | 8.00 |" in written.read_text()
    stored = load_run(tmp_path / "results" / report.LATEST)
    assert stored is not None
    assert [figure.name for figure in stored.figures] == ["append 1", "x"]


def test_peers_are_reported_with_ratios_and_with_reasons_where_they_did_not_run(tmp_path: Path) -> None:
    report.write(tmp_path, run_of(Figure(name="append 1", part="a", p50_ms=8)))
    figures = [
        PeerFigure(peer="p", operation="append 1", messages=10, unit="ms", turnkeep=4, peer_value=8),
        PeerFigure(
            peer="p", operation="append 1, 8 clients", messages=10, unit="per second", turnkeep=100, peer_value=50
        ),
    ]
    peers = PeerRun(
        at="now", commit="abc", machine=MACHINE, versions={"p": "1"}, failed={"q": "not on PyPI"}, figures=figures
    )
    (tmp_path / "results" / report.PEERS).write_text(peers.model_dump_json())
    text = report.write(tmp_path, None).read_text()

    assert text.count("| 0.50 |") == 2
    assert "q did not run: not on PyPI" in text


def test_plots_are_well_formed_and_have_a_point_per_value() -> None:
    lines = ET.fromstring(line_plot("a & b", {"p50": [(500, 4.0), (6000, 5.0)]}, x="turns", y="ms"))  # noqa: S314 - our own
    bars = ET.fromstring(bar_plot("CPU", {"append": {"server": 2.0, "Postgres": 1.0}}, unit="ms"))  # noqa: S314 - our own

    assert len(lines.findall("{*}circle")) == 2
    assert "3.00 ms" in "".join(bars.itertext())


def test_texts_are_the_same_for_the_same_seed() -> None:
    first, second = (next(TextSource(3).messages()) for _ in range(2))

    assert first == second
    assert 8 <= len(first.content.split()) <= 44
    assert next(TextSource(3).questions()) != next(TextSource(4).questions())


def test_a_tiny_run_measures_server_database_and_floor(tmp_path: Path) -> None:
    environment = os.environ | {"BENCH_TURNKEEP_EMBEDDER": "none", "BENCH_TURNKEEP_EMBEDDED_SHARED_BUFFERS_MB": "64"}
    command = [sys.executable, "bench/run.py", "--quick", "--part", "reads", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    run = load_run(tmp_path / "results" / report.LATEST)
    assert run is not None
    assert run.quick
    figures = run.by_name()
    read = figures["GET conversation"]
    assert read.requests >= 4
    assert read.p50_ms
    assert read.server_cpu_ms is not None
    assert read.postgres_cpu_ms is not None
    assert read.floor in figures
    assert (tmp_path / "RESULTS.md").read_text().startswith("# Results")
