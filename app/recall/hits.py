"""Hits of the API, made of ranked entries and their content. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pydantic import TypeAdapter

from app.conversations.schemas.conversations import Hydrated, Turn, turn_text
from app.conversations.schemas.summaries import Summary
from app.core.ids import format_id
from app.formats.schemas import CanonicalTurn
from app.index.schemas import EntryKind, SearchHit
from app.memory.longterm.schemas import Memory
from app.memory.schemas import Fact, fact_text
from app.recall.long_turns import TurnPassages
from app.recall.rank_overlap import overlap, rank_agreement
from app.recall.schemas import (
    ComparedHit,
    ComparedQuery,
    ConversationRecall,
    Explanation,
    Hit,
    HitDate,
    HitPassage,
    PassageBounds,
    RecalledTurn,
    ScoreTerms,
)
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
_FURTHER_PASSAGES = 2
"""Passages of a hit besides its text: together, a hit has at most three times `passage_tokens`."""
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


@dataclass(frozen=True, slots=True)
class HitForm:
    """How hits are shown: what the request asked for, and the passages of long turns.

    `lexemes` are those of the query, `configuration` the weights that the request changed. `is_large`: whether a turn
    has more tokens than a passage.
    """

    request: ConversationRecall
    lexemes: Sequence[str]
    configuration: Mapping[str, float]
    passages: Mapping[UUID, TurnPassages]
    is_large: Callable[[Turn], bool]

    def shown(self, turn: Turn) -> Turn:
        """Return a turn as it is shown with a hit: without its content, if that is large and was not asked for."""
        if self.request.content == "full" or not self.is_large(turn):
            return turn
        return turn.model_copy(update={"content": None, "tool_calls": [], "tool_results": []})


def hit_texts(hits: Sequence[SearchHit], contents: HitContents, passages: Mapping[UUID, TurnPassages]) -> list[str]:
    """Return the texts of hits, of long turns the best passage; empty for one without content."""
    turns, summaries, memories, facts = contents.turns.turns, contents.summaries, contents.memories, contents.facts
    texts: list[str] = []
    for hit in hits:
        key = hit.source_id
        match hit.kind:
            case EntryKind.TURN:
                best = passages.get(key)
                texts.append(_text(turns.get(key), None, None, None) if best is None else best.best_text)
            case EntryKind.SUMMARY:
                texts.append(_text(None, summaries.get(key), None, None))
            case EntryKind.MEMORY:
                texts.append(_text(None, None, memories.get(key), None))
            case EntryKind.FACT:
                texts.append(_text(None, None, None, facts.get(key)))
    return texts


def recalled_turn(hit: SearchHit, turn: CanonicalTurn, conversation: str | None = None) -> RecalledTurn:
    """Return the turn of a hit for a context. `conversation`: the name of its conversation, if that is another one."""
    return RecalledTurn(turn, hit.score, conversation, dates=read_dates(hit.dates))


def read_dates(dates: str | None) -> list[HitDate]:
    """Return the days that the relative dates in the text of a turn mean, as far as they are resolved."""
    return [] if dates is None else _DATES.validate_json(dates)


def to_hit(hit: SearchHit, contents: HitContents, around: Mapping[str, Sequence[Turn]], form: HitForm) -> Hit | None:
    """Return a hit of the API; None if its content does not exist any more.

    `around` are turns near hits by conversation, in order of position.
    """
    if not contents.has(hit):
        return None
    kind, source_id = hit.kind, hit.source_id
    turn = contents.turns.turns.get(source_id) if kind is EntryKind.TURN else None
    summary = contents.summaries.get(source_id) if kind is EntryKind.SUMMARY else None
    memory = contents.memories.get(source_id) if kind is EntryKind.MEMORY else None
    fact = contents.facts.get(source_id) if kind is EntryKind.FACT else None
    dates = [] if turn is None else read_dates(hit.dates)
    best = None if turn is None else form.passages.get(source_id)
    text = _text(turn, summary, memory, fact) if best is None else ""
    members = {
        "kind": kind,
        "id": format_id(source_id) if turn is None else turn.id,
        "conversation_id": _conversation_id(hit, turn),
        "score": round(hit.score, 6),
        "relevance": rounded(hit.relevance),
        **_passage_members(text, dates, best),
        "count": hit.count,
        "said_at": list(hit.said_at),
        "turn": None if turn is None else form.shown(turn),
        "fact": fact,
        "summary": summary,
        "memory": memory,
        "neighbours": None if turn is None else _neighbours(turn, around, form),
        "explain": _explain(hit, form.lexemes, form.configuration) if form.request.explain else None,
    }
    return _HIT.validate_python(members)


def _passage_members(text: str, dates: Sequence[HitDate], best: TurnPassages | None) -> dict[str, object]:
    """Return the text of a hit with its dates and passages: the whole text, or the best passage of a long turn."""
    if best is None:
        return {"text": text, "dates": dates, "passage": None, "passages": []}
    first, *others = best.passages
    start, end = first.start, first.end
    return {
        "text": best.text[start:end],
        "dates": [
            date.model_copy(update={"start": date.start - start, "end": date.end - start})
            for date in dates
            if start <= date.start and date.end <= end
        ],
        "passage": PassageBounds(start=start, end=end, length=len(best.text)),
        "passages": [
            HitPassage(start=other.start, end=other.end, text=best.text[other.start : other.end])
            for other in others[:_FURTHER_PASSAGES]
        ],
    }


def _neighbours(turn: Turn, around: Mapping[str, Sequence[Turn]], form: HitForm) -> list[Turn] | None:
    """Return the turns before and after a hit; None if they were not asked for."""
    reach = form.request.neighbours
    if not reach:
        return None
    near_turns, place = around.get(turn.conversation_id, []), turn.position or 0
    before = [other for other in near_turns if (other.position or 0) < place]
    after = [other for other in near_turns if (other.position or 0) > place]
    return [form.shown(other) for other in (*before[-reach:], *after[:reach])]


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
    if hit.reranked is not None:
        reasons.append(f"reranked {hit.reranked:.2f}")
    match = hit.terms["meaning"] + hit.terms["words"] + hit.terms["share"]
    session = configuration.get("session", RankingWeights().session)
    # the best match of the session may be the entry's own
    beyond = dict(hit.terms) | {"session": hit.terms["session"] - session * match}
    reasons += [text for name, text in _REASONS.items() if abs(beyond[name]) >= _NOTABLE]
    return Explanation(
        cosine=hit.cosine,
        bm25=hit.bm25,
        reranked=None if hit.reranked is None else round(hit.reranked, 6),
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
