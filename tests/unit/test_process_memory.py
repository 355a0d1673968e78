"""The garbage collector is paused during imports, and later collections leave out what a start has made."""

import gc
from contextlib import suppress

from app.core.process_memory import collection_paused, skip_started_objects


def test_collection_is_paused_and_goes_on_afterwards_even_after_an_error() -> None:
    assert gc.isenabled()
    with suppress(LookupError), collection_paused():
        assert not gc.isenabled()
        raise LookupError
    assert gc.isenabled()


def test_what_was_paused_before_stays_paused() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_started_objects_are_left_out_of_collections_and_later_ones_are_not() -> None:
    kept = [{} for _ in range(1000)]
    skip_started_objects()
    later: list[object] = []
    later.append(later)
    try:
        seen = {id(one) for one in gc.get_objects()}
        assert id(kept) not in seen
        assert id(later) in seen
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as tests/conftest.py has it
