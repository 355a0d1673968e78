"""Known token counts: the same as counted, by tenant, and without any text in memory."""

import gc
from uuid import UUID, uuid4

from app.context.token_counts import CountCache
from app.core.ids import TenantId
from app.providers.tokens import TiktokenCounter

TEXT = "The parrot eats grapes, and the tortoise eats lettuce. " * 4


class CountingCounter:
    """A counter that counts characters, and how often it is asked."""

    def __init__(self, name: str = "characters", *, more: int = 0) -> None:
        self.name = name
        self.exact = True
        self.asked: list[str] = []
        self._more = more

    def count(self, text: str) -> int:
        self.asked.append(text)
        return len(text) + self._more


def tenant() -> TenantId:
    return TenantId(uuid4())


def test_a_text_is_counted_once_for_each_tenant_and_tokenizer() -> None:
    known, ann, bob = CountCache(), tenant(), tenant()
    first, second = CountingCounter(), CountingCounter("others", more=1)
    for _ in range(3):
        assert known.of(ann, first).count(TEXT) == len(TEXT)
    assert first.asked == [TEXT]
    assert known.of(bob, first).count(TEXT) == len(TEXT)
    assert first.asked == [TEXT, TEXT]
    assert known.of(ann, second).count(TEXT) == len(TEXT) + 1
    assert second.asked == [TEXT]
    assert known.of(ann, first).count(TEXT + ".") == len(TEXT) + 1


def test_a_counter_of_a_tenant_is_the_one_it_was_made_of() -> None:
    known = CountCache()
    counter = known.of(tenant(), TiktokenCounter("o200k_base"))
    assert (counter.name, counter.exact) == ("o200k_base", True)
    for text in ("", "a", "é" * 400, TEXT, "\U0001f99c" * 150):
        assert counter.count(text) == counter.count(text) == TiktokenCounter("o200k_base").count(text)


def test_the_oldest_counts_are_forgotten() -> None:
    known, counter, ann = CountCache(max_counts=2), CountingCounter(), tenant()
    texts = [TEXT + name for name in "abc"]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        known.of(ann, counter).count(text)
    counter.asked.clear()
    for text in (texts[0], texts[2], texts[1]):
        known.of(ann, counter).count(text)
    assert counter.asked == [texts[1]]


def test_no_text_and_no_tenant_can_be_read_from_what_is_kept() -> None:
    known, ann = CountCache(), TenantId(UUID(int=7))
    known.of(ann, CountingCounter()).count(TEXT)
    kept = [one for one in gc.get_referents(known.__dict__["_counts"]) if isinstance(one, (str, bytes))]
    assert kept
    assert all(isinstance(one, bytes) and len(one) == 16 and one != ann.bytes for one in kept)
    others = CountCache()
    others.of(ann, CountingCounter()).count(TEXT)
    assert set(gc.get_referents(others.__dict__["_counts"])).isdisjoint(kept)
