"""Names that are almost a known one. Pure."""

from collections.abc import Iterable
from itertools import takewhile


def misspelt(names: Iterable[str], right: str) -> str | None:
    """Return the first of `names` that is `right` in another case, with other separators, or within one edit of it.

    An edit adds, removes or replaces a character, or swaps two.
    """
    folded = _folded(right)
    return next((name for name in names if name != right and _is_near(_folded(name), folded)), None)


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _is_near(name: str, right: str) -> bool:
    if abs(len(name) - len(right)) > right.count("_") + 1:
        return False
    return name.replace("_", "") == right.replace("_", "") or _is_one_edit(name, right)


def _is_one_edit(name: str, right: str) -> bool:
    begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, right, strict=False)))
    left, other = name[begin:], right[begin:]
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left[::-1], other[::-1], strict=False)))
    left, other = left[: len(left) - end], other[: len(other) - end]
    return max(len(left), len(other)) <= 1 or (len(left) == 2 and left == other[::-1])  # noqa: PLR2004 - a swap
