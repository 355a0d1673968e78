"""Items of a key-value store as conversations, without the framework."""

from typing import Any

import pytest
from turnkeep_client.integrations import store_items

MIA = ("users", "mia")


def test_a_namespace_and_a_key_are_read_back_and_name_one_item() -> None:
    assert store_items.place_of(store_items.metadata_of(MIA, "food")) == (MIA, "food")
    assert store_items.place_of({"topic": "another program's"}) is None
    assert store_items.external_id_of(MIA, "food") != store_items.external_id_of(("users",), "mia")
    assert len(store_items.external_id_of(MIA, "k" * 1000)) < 100


def test_a_prefix_is_contained_in_the_metadata_of_the_items_under_it() -> None:
    metadata: Any = store_items.metadata_of((*MIA, "work"), "job")
    prefix: Any = store_items.prefix_filter(MIA)
    for name, inner in prefix.items():
        assert inner.items() <= metadata[name].items()
    shorter: Any = store_items.metadata_of(("users",), "mia")
    assert not prefix["turnkeep.item"].items() <= shorter["turnkeep.item"].items()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"text": "I eat no peanuts."}, "I eat no peanuts."),
        ({"a": {"b": ["x", 1]}, "c": True, "d": None}, "a.b: x\na.b: 1"),
        ({}, ""),
    ],
)
def test_the_text_of_a_value_has_its_texts_and_numbers(value: Any, text: str) -> None:
    assert store_items.text_of_value(value) == text


@pytest.mark.parametrize(
    ("conditions", "is_met"),
    [
        (None, True),
        ({"rank": 2}, True),
        ({"rank": {"$gte": 2, "$lt": 3}}, True),
        ({"rank": {"$gt": 2}}, False),
        ({"rank": {"$ne": 2}}, False),
        ({"none": {"$lte": 2}}, False),
        ({"none": {"$ne": 2}}, True),
        ({"nested": {"a": 1}}, True),
        ({"rank": 2, "text": "y"}, False),
    ],
)
def test_a_value_meets_conditions(conditions: Any, is_met: bool) -> None:  # noqa: FBT001
    assert store_items.matches({"rank": 2, "text": "x", "nested": {"a": 1}}, conditions) is is_met


@pytest.mark.parametrize(("condition", "error"), [({"$in": [2]}, "Unknown operator"), ({"$gt": "x"}, "numbers")])
def test_a_condition_that_cannot_be_compared_is_refused_without_the_value(condition: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        store_items.matches({"rank": "secret"}, {"rank": condition})
    assert "secret" not in str(raised.value)
