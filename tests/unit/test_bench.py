"""`make bench`: how figures are merged, compared and reported, and one tiny run. Never how fast anything is."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from httpx import ASGITransport, AsyncClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tiktoken import load as tiktoken_load
from tiktoken_ext import openai_public as official

from app.providers.local.embedder import LocalEmbedder

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # a bench is run as scripts, so its modules are on the path of a script only

from compare import Alternation, Amounts  # noqa: E402
from peers import honcho_server  # noqa: E402
from peers.embeddings_app import create_app  # noqa: E402
from peers.library import WORKER_REQUIREMENTS, Work  # noqa: E402
from peers.worker import work  # noqa: E402
from suite import report  # noqa: E402
from suite.figure import Figure, Machine, PeerFigure, PeerRun, Run, load_run, merge, ratio  # noqa: E402
from suite.load import Timings  # noqa: E402
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
    assert "| append 1, p50 | 4.00 | ≤ 6 ms | yes |  | 8.00 |" in written.read_text()
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


class RememberedCalls:
    """A library, and a side of a comparison, that answers at once and remembers what it was given."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.appended: list[tuple[int, list[str]]] = []
        self.asked: list[str] = []

    async def answer(self, calls: int) -> Timings:
        return Timings([self.seconds] * calls, self.seconds * calls)


class FakeLibrary(RememberedCalls):
    async def append(self, place: int, texts: Sequence[str]) -> None:
        self.appended.append((place, list(texts)))

    async def recall(self, place: int, query: str) -> int:
        self.asked.append(query)
        return 10 - place


class FakeSide(RememberedCalls):
    async def append(self, batches: Sequence[list[str]], *, clients: int = 1) -> Timings:
        self.appended += [(clients, batch) for batch in batches]
        return await self.answer(len(batches))

    async def recall(self, queries: Sequence[str]) -> Timings:
        self.asked += queries
        return await self.answer(len(queries))

    async def context(self, queries: Sequence[str]) -> Timings | None:
        del queries


async def test_a_worker_makes_every_call_once_and_each_client_writes_to_a_place_of_its_own() -> None:
    library = FakeLibrary(0.0)
    one = await work(library, Work(batches=[["a"], ["b"]]))
    several = await work(library, Work(batches=[["c"]] * 4, clients=2))
    asked = await work(library, Work(queries=["d", "e"]))

    assert [len(done.seconds) for done in (one, several, asked)] == [2, 4, 2]
    assert library.appended[:2] == [(0, ["a"]), (0, ["b"])]
    assert {place for place, _ in library.appended[2:]} <= {1, 2}
    assert library.asked == ["d", "e"]
    assert asked.fewest_hits == 10


IMPORT_AND_EMBED = """
import asyncio, sys, sysconfig
import peers.worker
from app.providers.local.embedder import LocalEmbedder
asyncio.run(LocalEmbedder().embed(["text"], purpose="document"))
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
print(*(file for file in files if file.startswith(sysconfig.get_path("purelib"))), sep="\\n")
"""


def with_dependencies(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            needed = map(Requirement, metadata.requires(name) or ())
            waiting += [
                canonicalize_name(one.name)
                for one in needed
                if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return found


def test_the_environments_of_libraries_get_all_that_the_worker_and_the_embedder_import() -> None:
    path = os.pathsep.join(str(ROOT / folder) for folder in ("bench", ".", "packages/turnkeep-minilm"))
    printed = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_EMBED], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    imported = set(printed.split())
    owners = {
        canonicalize_name(package.name)
        for package in metadata.distributions()
        if any(str(package.locate_file(file)) in imported for file in package.files or ())
    }

    assert {"numpy", "onnxruntime", "prometheus-client"} <= owners
    assert owners - {"setuptools"} <= with_dependencies(WORKER_REQUIREMENTS)


async def test_both_sides_of_a_comparison_get_the_same_calls() -> None:
    turnkeep, other = FakeSide(0.001), FakeSide(0.004)
    amounts = Amounts(messages=(100, 150), rounds=2, calls=4, clients=2, batch=5)
    figures = await Alternation("p", turnkeep, other, amounts).run()

    assert turnkeep.appended == other.appended
    assert turnkeep.asked == other.asked
    assert [(figure.operation, figure.messages) for figure in figures] == [
        ("recall, k 10", 100), ("append 1", 100), ("append 1, 2 clients", 100), ("append 5", 100),
        ("recall, k 10", 150),
    ]  # fmt: skip
    assert {round(figure.ratio, 3) for figure in figures} == {0.25}


class DeferringSide(FakeSide):
    async def append(self, batches: Sequence[list[str]], *, clients: int = 1) -> Timings:
        timings = await super().append(batches, clients=clients)
        return Timings(timings.seconds, timings.elapsed_s, deferred_s=timings.elapsed_s)


async def test_work_that_a_peer_defers_is_in_a_figure_of_its_own() -> None:
    calls: list[str] = []

    async def prepare() -> None:
        calls.append("prepare")

    amounts = Amounts(messages=(100,), rounds=2, calls=4, clients=2, batch=5)
    compared = Alternation("p", FakeSide(0.001), DeferringSide(0.001), amounts, prepare=prepare)
    ratios = {figure.operation: round(figure.ratio, 3) for figure in await compared.run()}

    assert ratios == {
        "recall, k 10": 1, "append 1": 1, "append 1, until searchable": 0.5, "append 1, 2 clients": 1,
        "append 1, 2 clients, until searchable": 0.5, "append 5": 1, "append 5, until searchable": 0.5,
    }  # fmt: skip
    assert calls == ["prepare"] * 5


async def test_the_embeddings_endpoint_answers_with_the_vectors_of_the_embedder() -> None:
    texts = ["a red fox", "a blue whale"]
    body = {"model": "m", "input": texts, "encoding_format": "float", "dimensions": 384}
    async with AsyncClient(transport=ASGITransport(create_app()), base_url="http://bench") as client:
        answered = (await client.post("/v1/embeddings", json=body)).json()
    embedder = LocalEmbedder()
    expected = await embedder.embed(texts, purpose="document")
    await embedder.close()

    assert [one["index"] for one in answered["data"]] == [0, 1]
    np.testing.assert_allclose([one["embedding"] for one in answered["data"]], expected, atol=1e-6)
    assert set(answered["usage"]) == {"prompt_tokens", "total_tokens"}


def test_the_token_ranks_for_honcho_are_found_by_tiktoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honcho_server.write_token_ranks(tmp_path)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken_load, "read_file", lambda path: pytest.fail(f"{path} is downloaded"))

    for definition in (official.o200k_base, official.cl100k_base):
        assert len(definition()["mergeable_ranks"]) > 100_000


def test_texts_are_the_same_for_the_same_seed() -> None:
    first, second = (next(TextSource(3).messages()) for _ in range(2))

    assert first == second
    assert 8 <= len(first.content.split()) <= 44
    assert next(TextSource(3).questions()) != next(TextSource(4).questions())


@pytest.mark.slow
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
