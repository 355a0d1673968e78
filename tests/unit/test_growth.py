"""`bench/growth.py`: its tenants are the same for the same seed, and its figures are counted right. Never how fast."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # a bench is run as scripts, so its modules are on the path of a script only

from growing.formats import quantised  # noqa: E402
from growing.loading import LoadState  # noqa: E402
from growing.searches import share_found, size_classes  # noqa: E402
from growing.world import SentenceEmbedder, World, sentences_of  # noqa: E402

from app.providers.schemas import EmbeddingSpaceName  # noqa: E402


def test_sizes_are_uneven_and_all_turns_are_planned() -> None:
    world = World(turns=10_000, tenants=100, seed=1)

    assert sum(world.sizes) == 10_000
    assert world.sizes[0] > 10 * world.sizes[20] > 0
    planned = Counter[int]()
    for plan in world.conversations():
        planned[plan.tenant] += plan.turns
    assert [planned[tenant] for tenant in range(100)] == world.sizes


def test_too_few_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        World(turns=5, tenants=10, seed=1)


def test_the_same_seed_makes_the_same_texts_in_any_order() -> None:
    first, second = World(turns=300, tenants=3, seed=1), World(turns=300, tenants=3, seed=1)
    plans = first.conversations()

    assert plans == second.conversations()
    assert first.texts(plans[0]) == [second.texts(plan) for plan in reversed(plans)][-1]
    assert first.questions(50) == second.questions(50)
    assert World(turns=300, tenants=3, seed=2).texts(plans[0]) != first.texts(plans[0])


def test_a_turn_consists_of_sentences_that_have_vectors() -> None:
    world = World(turns=300, tenants=3, seed=1)
    known = set(world.sentences)

    for plan in world.conversations():
        for text in world.texts(plan):
            assert set(sentences_of(text)) <= known


async def test_vectors_are_unit_vectors_near_those_of_the_sentences_and_depend_on_the_text_only() -> None:
    vectors = np.eye(3, 64, dtype=np.float32)
    embedder = SentenceEmbedder(EmbeddingSpaceName("bench", "three", 64), ["One.", "Two.", "Three."], vectors)

    both = await embedder.embed(["One. Two.", "Three."], purpose="document")
    alone = await embedder.embed(["Three."], purpose="document")

    assert np.allclose(np.linalg.norm(both, axis=1), 1, atol=1e-5)
    assert (both[1] == alone[0]).all()
    assert both[1] @ vectors[2] > 0.95
    assert both[0] @ vectors[0] > 0.6 > both[0] @ vectors[2]


def test_long_texts_are_split_between_sentences() -> None:
    embedder = SentenceEmbedder(EmbeddingSpaceName("bench", "one", 4), ["One."], np.eye(1, 4, dtype=np.float32))

    pieces = embedder.split(" ".join(["One."] * 30))

    assert [len(sentences_of(piece)) for piece in pieces] == [12, 12, 6]
    assert len(embedder.split(" ".join(["One."] * 30), max_pieces=2)) == 2


def test_tenants_are_measured_by_size_and_the_vector_index_apart() -> None:
    classes = size_classes([70_000, 20_000, 9_000, 6_500, 6_100, 5_000, 900, 100, 10], 65_536)

    assert {one.name: one.sizes for one in classes} == {
        "up to 300": [100, 10],
        "to 1 000": [900],
        "about 6 000": [6_100, 6_500, 5_000],
        "to 65,000": [20_000, 9_000],
        "above 65,536": [70_000],
    }


def test_a_hit_that_scores_as_the_last_one_counts_as_found() -> None:
    exact = {"a": 0.9, "b": 0.5}

    assert share_found({"a": 0.9, "b": 0.5}, exact) == 1.0
    assert share_found({"a": 0.9, "c": 0.5}, exact) == 1.0
    assert share_found({"a": 0.9, "c": 0.4}, exact) == 0.5
    assert share_found({}, {}) == 1.0


def test_bytes_and_a_scale_restore_a_vector_to_half_a_step() -> None:
    vectors = np.array([[1.0, -0.5, 0.25], [0.0, 0.0, 0.0]], dtype=np.float32)

    integers, scales = quantised(vectors)

    assert integers.dtype == np.int8
    assert np.abs(integers * scales[:, None] - vectors).max() <= scales.max() / 2


def test_a_folder_is_not_continued_with_other_arguments(tmp_path: Path) -> None:
    LoadState.open(tmp_path, turns=100, tenants=2, seed=1).save(tmp_path)

    assert LoadState.open(tmp_path, turns=100, tenants=2, seed=1).turns == 100
    with pytest.raises(ValueError, match="100 turns of 2 tenants"):
        LoadState.open(tmp_path, turns=200, tenants=2, seed=1)


@pytest.mark.slow
def test_a_tiny_run_loads_measures_and_continues(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    command = (
        sys.executable, ROOT / "bench" / "growth.py", tmp_path / "data", "--turns", "400", "--tenants", "5",
        "--rounds", "2", "--sample", "50", "--exact-entries", "150", "--out", tmp_path / "growth.md",
    )  # fmt: skip
    stopped = subprocess.run((*command, "--part", "load", "--stop-after-s", "0"), check=False, capture_output=True)
    whole = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})

    assert stopped.returncode == 0
    assert whole.returncode == 0, whole.stderr[-2000:]
    written = (tmp_path / "growth.md").read_text()
    assert "400 turns of 5 tenants" in written
    assert "No invariant is broken" in written
    titles = ("Load", "Disk by part", "Recall across a tenant", "Memory", "Other ways to store vectors", "Vector index")
    assert [title for title in titles if f"## {title}" not in written] == []
