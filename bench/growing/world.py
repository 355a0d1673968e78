"""Tenants of uneven size with conversations, turns and vectors, the same for the same seed.

Sizes follow Zipf's law: the tenant of rank r has a share of 1 / r. A turn has one to six sentences of a few thousand,
and one in a hundred has forty. Only these sentences are embedded by the model. The vector of a turn is the mean of the
vectors of its sentences plus noise, which is near to what the model makes of several sentences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final
from zlib import crc32

import numpy as np
from suite.texts import TextSource

from app.providers.schemas import EmbeddingSpaceName, Purpose, Vectors

SENTENCES: Final = 6_000
_MEAN_CONVERSATION: Final = 80
_MAX_CONVERSATION: Final = 1_000
_SENTENCES_OF_TURN: Final = (1, 6)
_SENTENCES_OF_LONG_TURN: Final = 40
_LONG: Final = 0.01
_SENTENCES_PER_PIECE: Final = 12
_NOISE: Final = 0.15
"""Length of the noise that is added to a unit vector: two turns with the same sentences have a cosine of about 0.98."""

_PEOPLE: Final = (
    "Ana", "Ben", "Chloe", "Dmitri", "Elif", "Farid", "Grace", "Hiro", "Ines", "Jonas", "Karim", "Lena", "Mateo",
    "Nadia", "Oskar", "Priya", "Quinn", "Rosa", "Sven", "Tara", "Umar", "Vera", "Wei", "Yusuf", "Zoe",
)  # fmt: skip
_ACTIONS: Final = (
    "ordered", "returned", "repaired", "lost", "sold", "painted", "borrowed", "cancelled", "photographed", "installed",
    "compared", "broke", "cleaned", "asked about", "paid for", "forgot", "recommended", "measured", "moved", "planned",
)  # fmt: skip
_OBJECTS: Final = (
    "the blue bicycle", "a train ticket", "the kitchen sink", "two concert seats", "an old laptop", "the garden fence",
    "a birthday cake", "the tax report", "a hiking tent", "the router", "a winter coat", "the insurance contract",
    "a piano", "the database server", "a passport", "the coffee machine", "a rental car", "the school project",
    "a vegetable soup", "the wedding photos", "an electric heater", "the gym membership", "a medical record",
    "the front door", "a chess set", "the parking permit", "a language course", "the water bill", "a violin",
    "the quarterly budget",
)  # fmt: skip
_DETAILS: Final = (
    "in Lisbon", "before the holidays", "because it was too expensive", "with a discount", "after the storm",
    "for the new office", "on a rainy Sunday", "without a receipt", "near the station", "for the grandparents",
    "in the wrong size", "during the conference", "at the last minute", "from a neighbour", "for a friend in Oslo",
    "after three complaints", "in the evening", "with a broken screen", "for the whole team", "by mistake",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """One conversation to load: its tenant, its number in the tenant, and its number of turns."""

    tenant: int
    number: int
    turns: int


class World:
    """Everything that is loaded. `turns` of `tenants` together; each tenant has at least one turn."""

    def __init__(self, *, turns: int, tenants: int, seed: int) -> None:
        self.seed = seed
        shares = 1 / np.arange(1, tenants + 1)
        sizes = np.maximum(1, np.floor(turns * shares / shares.sum())).astype(int)
        sizes[0] += turns - int(sizes.sum())
        if sizes[0] < sizes[-1]:
            raise ValueError(f"{turns} turns are too few for {tenants} tenants")
        self.sizes: list[int] = sizes.tolist()

    @cached_property
    def sentences(self) -> list[str]:
        """All sentences, each distinct."""
        random, texts = np.random.default_rng(self.seed), TextSource(self.seed)
        said = (" ".join(message.content[:-1].split()[:6]).lower() for message in texts.messages())
        made: dict[str, None] = {}
        while len(made) < SENTENCES:
            person, action, thing, detail = (
                words[random.integers(len(words))] for words in (_PEOPLE, _ACTIONS, _OBJECTS, _DETAILS)
            )
            made[f"{person} {action} {thing} {detail}, and wrote: {next(said)}."] = None
        return list(made)

    def questions(self, count: int) -> list[str]:
        """Return questions about people and objects, each distinct."""
        random = np.random.default_rng([self.seed, 1])
        made: dict[str, None] = {}
        while len(made) < count:
            person, thing, detail = (words[random.integers(len(words))] for words in (_PEOPLE, _OBJECTS, _DETAILS))
            action = _ACTIONS[random.integers(len(_ACTIONS))]
            made[f"What was it that {person} {action}, {thing} {detail}?"] = None
        return list(made)

    def conversations(self) -> list[ConversationPlan]:
        """Return all conversations, those of all tenants mixed, as they are written in a service."""
        plans = [plan for tenant in range(len(self.sizes)) for plan in self._of_tenant(tenant)]
        order = np.random.default_rng([self.seed, 2]).permutation(len(plans))
        return [plans[at] for at in order.tolist()]

    def _of_tenant(self, tenant: int) -> Iterator[ConversationPlan]:
        random, left, number = np.random.default_rng([self.seed, 3, tenant]), self.sizes[tenant], 0
        while left:
            turns = min(left, _MAX_CONVERSATION, int(random.geometric(1 / _MEAN_CONVERSATION)))
            yield ConversationPlan(tenant, number, turns)
            left, number = left - turns, number + 1

    def texts(self, plan: ConversationPlan) -> list[str]:
        """Return the texts of the turns of a conversation."""
        random = np.random.default_rng([self.seed, 4, plan.tenant, plan.number])
        # a larger tenant speaks about more
        known = min(SENTENCES, 200 + self.sizes[plan.tenant] // 5)
        own = np.random.default_rng([self.seed, 5, plan.tenant]).choice(SENTENCES, known, replace=False)
        fewest, most = _SENTENCES_OF_TURN
        counts = random.integers(fewest, most + 1, plan.turns)
        counts[random.random(plan.turns) < _LONG] = _SENTENCES_OF_LONG_TURN
        drawn: Iterator[int] = iter(random.choice(own, int(counts.sum())).tolist())
        return [" ".join(self.sentences[at] for at in islice(drawn, count)) for count in counts.tolist()]


class SentenceEmbedder:
    """An embedder that has the vectors of all sentences, `vectors` of shape (sentences, dimensions), and adds noise."""

    max_batch = 100_000

    def __init__(self, space: EmbeddingSpaceName, sentences: Sequence[str], vectors: Vectors) -> None:
        self.space = space
        self._vectors = vectors
        self._places = {sentence: place for place, sentence in enumerate(sentences)}

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Return a unit vector for each text, float32."""
        del purpose
        made = np.empty((len(texts), self.space.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            mean = self._vectors[[self._places[one] for one in sentences_of(text)]].mean(axis=0)
            # noise that depends on the text only, so that a load that is continued makes the same vectors
            noise = np.random.default_rng(crc32(text.encode())).standard_normal(len(mean), dtype=np.float32)
            vector = mean / np.linalg.norm(mean) + noise * (_NOISE / len(mean) ** 0.5)
            made[row] = vector / np.linalg.norm(vector)
        return made

    def split(self, text: str, *, max_pieces: int | None = None) -> list[str]:
        """Return pieces of some sentences each, at most the first `max_pieces`."""
        sentences = sentences_of(text)
        pieces = [
            " ".join(sentences[at : at + _SENTENCES_PER_PIECE]) for at in range(0, len(sentences), _SENTENCES_PER_PIECE)
        ]
        return pieces[:max_pieces]

    def reads(self, text: str) -> bool:
        """Return whether there is a text: all are read."""
        return bool(text)

    def ready(self) -> bool:
        """Return True."""
        return True


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a turn, each with its full stop."""
    return [f"{one.removesuffix('.')}." for one in text.split(". ")]
