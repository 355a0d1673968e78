"""Entries with equal texts, of which a search returns one. Pure.

Two entries are equal if they are of one kind and their texts have one `text_hash`. What a user says may be about the
speaker in any words, so it equals only turns of the same actor.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.formats.schemas import Role
from app.index.schemas import SearchResult

_KIND_BIT: Final = 62
_ACTOR_BIT: Final = 40


def equality_keys(result: SearchResult, elements: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return a number for each of some entries that equal ones have in common; 0 for a text without words."""
    hashes = result.text_hash[elements]
    user = result.role_code(Role.USER.value)
    of_speaker = result.role[elements] == (-2 if user is None else user)
    speaker = np.where(of_speaker, result.actor[elements].astype(np.int64) + 2, 0) << _ACTOR_BIT
    return np.where(hashes == 0, 0, hashes ^ speaker ^ (result.kind[elements].astype(np.int64) << _KIND_BIT))


def first_of_each(keys: NDArray[np.int64]) -> list[int]:
    """Return the places of the first entry with each key, in order. Entries with the key 0 equal no other."""
    places: dict[int, int] = {}
    for place, key in enumerate(keys.tolist()):
        places.setdefault(key or -1 - place, place)
    return list(places.values())


def copies_of(
    result: SearchResult, elements: NDArray[np.intp], *, without: Collection[int] = ()
) -> dict[int, Sequence[int]]:
    """Return for some entries all in scope that equal it, the newest first, itself among them.

    `without`: entries that are not counted.
    """
    at = np.flatnonzero(np.isin(result.text_hash, result.text_hash[elements]))
    at = at[np.argsort(-result.occurred_at[at], kind="stable")]
    equal: defaultdict[int, list[int]] = defaultdict(list)
    for key, copy in zip(equality_keys(result, at).tolist(), at.tolist(), strict=True):
        if copy not in without:
            equal[key].append(copy)
    keys = zip(elements.tolist(), equality_keys(result, elements).tolist(), strict=True)
    return {element: equal[key] if key else [element] for element, key in keys}


def time_of(microseconds: np.int64) -> datetime:
    """Return a time of a search result."""
    return datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds))
