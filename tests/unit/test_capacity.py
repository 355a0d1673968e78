"""`bench/capacity.py`: it reads its constants from the results."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # a bench is run as scripts, so its modules are on the path of a script only

from capacity import (  # noqa: E402
    Assumptions,
    Capacity,
    Wanted,
    calculate,
    index_bytes,
    limits,
    read_measured,
    read_tables,
)

RATES = ("appends", "contexts with recall")


def wanted(turns: int = 1_000_000, *, rate: float = 0.0, windows: int = 0, **more: float) -> Wanted:
    values = {"words": 60, "tenants": 1000, "dimensions": 384, "in_index": 0.0, "searched": 0} | more
    return Wanted(turns=turns, windows=windows, rates=dict.fromkeys(RATES, rate), **values)  # pyright: ignore[reportArgumentType]


def needs(one: Wanted) -> Capacity:
    return calculate(one, read_measured(), Assumptions())


def test_its_disk_is_that_of_the_growth_measurement_for_the_same_turns() -> None:
    measured = read_tables(ROOT / "bench/GROWTH.md")["Disk by table, bytes a turn"]
    calculated = needs(wanted(2**30)).disk_gib
    for part, table in {"vectors": "vectors", "index_entries": "index_entries", "turns": "turns"}.items():
        assert calculated[part] == pytest.approx(float(measured[table]["together"].replace(",", "")), rel=1e-6)
    assert sum(calculated.values()) == pytest.approx(float(measured["all tables"]["together"].replace(",", "")))


def test_its_cores_are_those_of_the_results_for_one_request_a_second() -> None:
    tables = read_tables(ROOT / "bench/RESULTS.md")
    row = tables["Part: appends"]["append 1, 8 clients"]
    one = Wanted(1000, 60, 1, 384, 0.0, 0, 0, {"appends": 1000.0})
    assert needs(one).service_cores == pytest.approx(float(row["server CPU ms"]))
    assert needs(one).postgres_cores == pytest.approx(float(row["Postgres CPU ms"]))


def test_longer_turns_and_more_dimensions_change_what_depends_on_them() -> None:
    usual = needs(wanted()).disk_gib
    long = needs(wanted(words=600)).disk_gib
    assert long["vectors"] == pytest.approx(usual["vectors"] / read_measured().vectors_per_turn * 3)
    assert long["turns"] > usual["turns"]
    wide = needs(wanted(dimensions=1536)).disk_gib
    assert wide["vectors"] > 3 * usual["vectors"]
    assert wide["index_entries"] == usual["index_entries"]
    indexed = needs(wanted(in_index=0.5)).disk_gib
    assert indexed["vector index"] > 0
    # a vector that is put into the index is written again
    assert indexed["vectors, written again"] == pytest.approx(indexed["vectors"] / 2)
    assert [index_bytes(dimensions) for dimensions in (384, 768, 1536, 3072)] == [2048, 4096, 8192, 8192]


def test_it_names_the_limits_that_are_passed() -> None:
    small = wanted(rate=10.0)
    assert limits(small, needs(small), Assumptions()) == []
    large = wanted(10**9, rate=2000.0, windows=20_000, tenants=10)
    named = [name for name, _, _ in limits(large, needs(large), Assumptions())]
    assert len(named) == 4
    assert needs(wanted(windows=25_000)).processes == 3


def test_a_row_that_a_file_does_not_have_any_more_is_named(tmp_path: Path) -> None:
    shorter = tmp_path / "RESULTS.md"
    text = (ROOT / "bench/RESULTS.md").read_text()
    shorter.write_text(re.sub(r"^\| idle memory \|.*\n", "", text, flags=re.MULTILINE))
    with pytest.raises(ValueError, match="idle memory"):
        read_measured(results=shorter)
