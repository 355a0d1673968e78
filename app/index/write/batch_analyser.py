"""Analysis of the documents of one append, and the pieces of their text that are embedded at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.index.analyser.analyser import Analyser
from app.index.analyser.dates import may_have_dates
from app.index.schemas import IndexDocument, TextAnalysis
from app.providers.schemas import Embedder
from app.settings.memory import IndexSettings

MAX_VECTORS_PER_ENTRY: Final = 32
"""Vectors of one text, one for each piece: about 7 000 tokens. The text behind them is found by its words.

More of them would hardly rank a text better (`per_piece` lowers its meaning with their number), at 30 ms of a core and
1.5 KB each.
"""
MAX_TEXT_BYTES: Final = 256 * 2**10
"""How much of a text is analysed: Postgres limits the tsvector of an entry to 1 MB."""
_MAX_UNSETTLED: Final = 2_000
"""Longer texts that show no language keep the assumed one: another analysis would take long in their transaction."""


@dataclass(frozen=True, slots=True)
class AnalysedDocument:
    """The index data of a document, the pieces to embed at once, and whether dates are to be resolved.

    `source` is the document, if it is short and shows no language.
    """

    analysis: TextAnalysis
    pieces: Sequence[str]
    dates_due: bool
    source: IndexDocument | None


class BatchAnalyser:
    """Analyser of a batch of documents, which limits the pieces that are embedded at once."""

    def __init__(self, settings: IndexSettings, embedder: Embedder | None, *, max_vectors: int | None = None) -> None:
        self._embedder = embedder
        self._analyser = Analyser(settings.forced_language)
        self._left = settings.max_vectors_per_append if max_vectors is None else max_vectors

    def analyse_next(self, document: IndexDocument) -> AnalysedDocument:
        """Analyse the next document. Blocking."""
        analysis, dates_due = analyse(self._analyser, document, max_bytes=MAX_TEXT_BYTES)
        is_unsettled = not analysis.is_detected and len(document.text) <= _MAX_UNSETTLED
        return AnalysedDocument(
            analysis, self._pieces(document.text), dates_due, source=document if is_unsettled else None
        )

    def _pieces(self, text: str) -> Sequence[str]:
        """Return all pieces of a text up to the limit, or none if that is more than the remaining number."""
        if self._embedder is None or self._left == 0 or not text.strip():
            return ()
        # one piece beyond the remaining number is enough to know that there are too many
        pieces = self._embedder.split(text, max_pieces=min(self._left + 1, MAX_VECTORS_PER_ENTRY))
        if len(pieces) > self._left:
            return ()
        self._left -= len(pieces)
        return pieces


def analyse(analyser: Analyser, document: IndexDocument, *, max_bytes: int) -> tuple[TextAnalysis, bool]:
    """Analyse a document; return its index data, and whether it may have relative dates."""
    analysis = analyser.document(
        document.text,
        actor=document.actor,
        occurred_at=document.occurred_at,
        max_bytes=max_bytes,
        language=document.language,
    )
    return analysis, may_have_dates(document.text, analysis.language)


def text_length(document: IndexDocument) -> int:
    """Return the characters of a document."""
    return len(document.text)
