"""Hits of the API, made of ranked entries and their content. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pydantic import TypeAdapter

from app.conversations.schemas.conversations import Hydrated, Turn, turn_text
from app.conversations.schemas.summaries import Summary
from app.core.ids import format_id
from app.index.schemas import EntryKind, SearchHit
from app.memory.longterm.schemas import Memory
from app.memory.schemas import Fact, fact_text
from app.recall.rank_overlap import overlap, rank_agreement
from app.recall.schemas import ComparedHit, ComparedQuery, ConversationRecall, Explanation, Hit, HitDate, ScoreTerms
from app.recall.scoring import RankingWeights

_REASONS = {
    "session": "another turn of the same session matches better",
    "neighbour": "a neighbouring turn matches",
    "answer": "it answers a question that matches",
    "speaker": "the query is about this speaker",
    "assistant": "said by the assistant, which counts less",
    "asks": "it restates the query without an answer",
    "instructs": "it instructs the assistant how to answer",
    "wanted": "it has the kind of word that is asked for",
}
_NOTABLE = 0.01
"""Smaller terms are no reason."""
_DATES = TypeAdapter(list[HitDate])
_HIT: TypeAdapter[Hit] = TypeAdapter(Hit)


@dataclass(frozen=True, slots=True)
class HitContents:
    """The content of the hits, read from the capabilities that own it."""

    turns: Hydrated[Turn]
    summaries: Mapping[UUID, Summary]
    memories: Mapping[UUID, Memory]
    facts: Mapping[UUID, Fact]

    def has(self, hit: SearchHit) -> bool:
        """Return whether the hit still exists."""
        source_id = hit.source_id
        match hit.kind:
            case EntryKind.TURN:
                return source_id in self.turns.turns or source_id in self.turns.left_out
            case EntryKind.MEMORY:
                return source_id in self.memories
            case EntryKind.SUMMARY:
                return source_id in self.summaries
            case EntryKind.FACT:
                return source_id in self.facts


def to_hit(
    hit: SearchHit,
    contents: HitContents,
    around: dict[str, list[Turn]],
    request: ConversationRecall,
    lexemes: Sequence[str],
    configuration: Mapping[str, float],
) -> Hit | None:
    """Return a hit of the API; None if its content does not exist any more.

    `around` are turns near hits by conversation, in order of position; `lexemes` those of the query, `configuration`
    the weights that the request changed.
    """
    if not contents.has(hit):
        return None
    kind, source_id = hit.kind, hit.source_id
    turn = contents.turns.turns.get(source_id) if kind is EntryKind.TURN else None
    summary = contents.summaries.get(source_id) if kind is EntryKind.SUMMARY else None
    memory = contents.memories.get(source_id) if kind is EntryKind.MEMORY else None
    fact = contents.facts.get(source_id) if kind is EntryKind.FACT else None
    neighbours: list[Turn] | None = None
    if request.neighbours and turn is not None:
        near_turns, place = around.get(turn.conversation_id, []), turn.position or 0
        before = [other for other in near_turns if (other.position or 0) < place]
        after = [other for other in near_turns if (other.position or 0) > place]
        neighbours = before[-request.neighbours :] + after[: request.neighbours]
    members = {
        "kind": kind,
        "id": format_id(source_id) if turn is None else turn.id,
        "conversation_id": _conversation_id(hit, turn),
        "score": round(hit.score, 6),
        "relevance": rounded(hit.relevance),
        "text": _text(turn, summary, memory, fact),
        "count": hit.count,
        "said_at": list(hit.said_at),
        "dates": [] if turn is None or hit.dates is None else _DATES.validate_json(hit.dates),
        "turn": turn,
        "fact": fact,
        "summary": summary,
        "memory": memory,
        "neighbours": neighbours,
        "explain": _explain(hit, lexemes, configuration) if request.explain else None,
    }
    return _HIT.validate_python(members)


def _conversation_id(hit: SearchHit, turn: Turn | None) -> str | None:
    if turn is not None:
        return turn.conversation_id
    return None if hit.conversation_id is None else format_id(hit.conversation_id)


def _text(turn: Turn | None, summary: Summary | None, memory: Memory | None, fact: Fact | None) -> str:
    if turn is not None:
        return turn_text(turn)
    if summary is not None:
        return summary.text
    if fact is not None:
        return fact_text(fact.subject, fact.predicate, fact.object)
    return "" if memory is None else memory.content


def _explain(hit: SearchHit, lexemes: Sequence[str], configuration: Mapping[str, float]) -> Explanation:
    reasons: list[str] = []
    if hit.cosine is not None:
        reasons.append(f"meaning {hit.cosine:.2f} (cosine)")
    if hit.bm25 > 0:
        reasons.append(f"words {hit.bm25:.1f} (BM25)")
    match = hit.terms["meaning"] + hit.terms["words"] + hit.terms["share"]
    session = configuration.get("session", RankingWeights().session)
    # the best match of the session may be the entry's own
    beyond = dict(hit.terms) | {"session": hit.terms["session"] - session * match}
    reasons += [text for name, text in _REASONS.items() if abs(beyond[name]) >= _NOTABLE]
    return Explanation(
        cosine=hit.cosine,
        bm25=hit.bm25,
        terms=ScoreTerms.model_validate({name: round(value, 6) for name, value in hit.terms.items()}),
        words=list(lexemes),
        configuration=dict(configuration),
        reason="; ".join(reasons),
    )


def rounded(relevance: float | None) -> float | None:
    """Return a relevance as it is shown."""
    return None if relevance is None else round(relevance, 4)


def compared_hit(hit: SearchHit) -> ComparedHit:
    """Return a hit of a comparison of two spaces."""
    return ComparedHit(kind=hit.kind, id=format_id(hit.source_id), score=round(hit.score, 6))


def compare_hits(searched: list[ComparedHit], compared: list[ComparedHit], degraded: list[str]) -> ComparedQuery:
    """Return how similar the hits of one query are in two spaces."""
    searched_ids, compared_ids = [hit.id for hit in searched], [hit.id for hit in compared]
    return ComparedQuery(
        overlap=round(overlap(searched_ids, compared_ids), 4),
        rank_agreement=round(rank_agreement(searched_ids, compared_ids), 4),
        searched=searched,
        compared=compared,
        degraded=degraded,
    )
