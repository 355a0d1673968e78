"""Ranking of search candidates. Pure.

Method: scores by vector and by words are scaled to 0 to 1 over the pool and added with weights 0.6 and 0.4 (reciprocal
rank fusion did worse than words alone on LoCoMo). Then three bonuses are added: 0.1 for turns of the actor that the
query names, 0.3 of the mean of the session's three best scores, and 0.3 of the better neighbour's score in the same
session. A turn right after another actor's question gets 0.5 of the question's score instead, if that is more: the
question has the query's words, and the answer has the information. The same share after turns that are not questions
makes recall worse. The numbers are few and round on purpose; `bench/replay.py` measures them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.conversations.schemas.participants import Participant
from app.formats.schemas import Role
from app.index.analyser.words import words
from app.index.schemas import SearchCandidate

VECTOR_WEIGHT = 0.6
TEXT_WEIGHT = 0.4
ACTOR_BONUS = 0.1
SESSION_SHARE = 0.3
SESSION_BEST = 3
NEIGHBOUR_SHARE = 0.3
ANSWER_SHARE = 0.5

# bounds the work per name, since there may be thousands of names
_FIRST_CHARACTERS = 64
_ROLE_NAMES = frozenset(role.value for role in Role)
_FIRST_PERSON = frozenset({"i", "im", "ive", "id", "ill", "me", "my", "mine", "myself"})
_SECOND_PERSON = frozenset({"you", "your"})
_SAYING = re.compile(
    r"\b(tell|told|said|say|suggest\w*|recommend\w*|mention\w*|advi[sc]e\w*|give|gave|provid\w*|list\w*|explain\w*)\b"
)


@dataclass(frozen=True, slots=True)
class SpeakerIntent:
    """The speaker that a query refers to: one actor by name, or a role by its pronouns."""

    actor: str | None = None
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate with its score and the parts of that score."""

    candidate: SearchCandidate
    score: float
    vector: float
    text: float
    fused: float
    actor_bonus: float
    session_bonus: float
    neighbour_bonus: float


def name_words(participant: Participant) -> set[str]:
    """Return the single words that mean this participant in a query: the first word of each of its names."""
    spellings = [participant.actor, participant.name, *participant.aliases]
    first = {parts[0] for spelling in spellings if spelling and (parts := words(spelling[:_FIRST_CHARACTERS]))}
    return {name for name in first if len(name) > 1 and name not in _ROLE_NAMES}


def remove_names(query: str, participants: Iterable[Participant]) -> str:
    """Return the query without participants' names: names pull a vector towards turns that address that person."""
    names = {name for participant in participants for name in name_words(participant)}
    kept = [word for word in query.split() if _single_word(word) not in names]
    return " ".join(kept) or query


def _single_word(word: str) -> str:
    found = words(re.sub(r"['\u2019]s\b", "", word))
    return found[0] if len(found) == 1 else ""


def read_intent(query: str, participants: Sequence[Participant]) -> SpeakerIntent:
    """Return the speaker that the query refers to. A name counts if it means exactly one participant."""
    asked = set(words(re.sub(r"['\u2019]s\b", "", query)))
    named = [participant.actor for participant in participants if name_words(participant) & asked]
    if len(named) == 1:
        return SpeakerIntent(actor=named[0])
    if named:
        return SpeakerIntent()
    if asked & _SECOND_PERSON and _SAYING.search(query.lower()):
        return SpeakerIntent(role=Role.ASSISTANT)
    if asked & _FIRST_PERSON:
        return SpeakerIntent(role=Role.USER)
    return SpeakerIntent()


def _scale(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    if high <= low:
        return [0.0] * len(values)
    return [(value - low) / (high - low) for value in values]


def rank(
    candidates: Sequence[SearchCandidate], intent: SpeakerIntent, *, by_vector: bool, by_text: bool
) -> list[RankedCandidate]:
    """Rank all candidates, best first. The newer one, then the lower id, wins a tie, so the order is deterministic."""
    if not candidates:
        return []
    lowest = min((c.cosine for c in candidates if c.cosine is not None), default=0.0)
    text = _scale([c.bm25 for c in candidates])
    vector = _scale([lowest if c.cosine is None else c.cosine for c in candidates])
    # a candidate without a vector yet is scored by words alone
    vector = [t if c.cosine is None else v for c, v, t in zip(candidates, vector, text, strict=True)]
    vector_weight, text_weight = _weights(by_vector=by_vector, by_text=by_text)
    fused = [vector_weight * v + text_weight * t for v, t in zip(vector, text, strict=True)]
    actor = [_actor_bonus(candidate, intent) for candidate in candidates]
    base = [f + a for f, a in zip(fused, actor, strict=True)]
    session = _session_bonus(candidates, base)
    base = [b + s for b, s in zip(base, session, strict=True)]
    neighbour = _neighbour_bonus(candidates, base, intent)
    ranked = [
        RankedCandidate(
            candidate, base[i] + neighbour[i], vector[i], text[i], fused[i], actor[i], session[i], neighbour[i]
        )
        for i, candidate in enumerate(candidates)
    ]
    ranked.sort(key=lambda r: (-r.score, -r.candidate.occurred_at.timestamp(), r.candidate.entry_id))
    return ranked


def _weights(*, by_vector: bool, by_text: bool) -> tuple[float, float]:
    match by_vector, by_text:
        case True, True:
            return VECTOR_WEIGHT, TEXT_WEIGHT
        case True, False:
            return 1.0, 0.0
        case _:
            return 0.0, 1.0


def _actor_bonus(candidate: SearchCandidate, intent: SpeakerIntent) -> float:
    meant = (intent.actor is not None and candidate.actor == intent.actor) or (
        intent.role is not None and candidate.role == intent.role
    )
    return ACTOR_BONUS if meant else 0.0


def _session_bonus(candidates: Sequence[SearchCandidate], base: Sequence[float]) -> list[float]:
    members: defaultdict[tuple[UUID, int], list[float]] = defaultdict(list)
    for candidate, score in zip(candidates, base, strict=True):
        if candidate.conversation_id is not None and candidate.session is not None:
            members[candidate.conversation_id, candidate.session].append(score)
    means: Mapping[tuple[UUID, int], float] = {
        session: sum(sorted(scores, reverse=True)[:SESSION_BEST]) / min(len(scores), SESSION_BEST)
        for session, scores in members.items()
    }
    return [
        SESSION_SHARE * means[candidate.conversation_id, candidate.session]
        if candidate.conversation_id is not None and candidate.session is not None
        else 0.0
        for candidate in candidates
    ]


def _neighbour_bonus(
    candidates: Sequence[SearchCandidate], base: Sequence[float], intent: SpeakerIntent
) -> list[float]:
    placed = {_position_key(candidate): (candidate, score) for candidate, score in zip(candidates, base, strict=True)}
    bonus: list[float] = []
    for candidate in candidates:
        before, after = placed.get(_position_key(candidate, -1)), placed.get(_position_key(candidate, +1))
        best = NEIGHBOUR_SHARE * max((score for _, score in filter(None, (before, after))), default=0.0)
        # a query about an utterance of one role is not about the reply of the other
        meant = intent.role is None or intent.role == candidate.role
        if before is not None and meant and before[0].asks and before[0].actor != candidate.actor:
            best = max(best, ANSWER_SHARE * before[1])
        bonus.append(best)
    return bonus


def _position_key(candidate: SearchCandidate, step: int = 0) -> tuple[UUID | None, int | None, int | None, UUID | None]:
    """Return the key of a candidate's place in its session. Without a position, it is only its own neighbour."""
    if candidate.position is None:
        return None, None, None, candidate.entry_id if step == 0 else None
    return candidate.conversation_id, candidate.session, candidate.position + step, None
