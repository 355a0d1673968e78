"""Languages of entries, and what depends on them: turns that show none, and relative dates. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from app.index.analyser.analyser import Analyser, quote_lexeme
from app.index.analyser.date_words import date_words
from app.index.analyser.dates import may_have_dates, resolve_dates
from app.index.analyser.languages import DEFAULT
from app.index.schemas import CopiedEntry, DatedEntry, IndexDocument, IndexEntry
from app.index.write.batch_analyser import analyse


def inherit_languages(
    entries: Sequence[IndexEntry], before: str | None, *, max_bytes: int
) -> tuple[list[IndexEntry], str | None]:
    """Give entries that show no language that of the entry before them; return them with the last language."""
    language = before
    with_languages: list[IndexEntry] = []
    for entry in entries:
        prepared = entry.prepared
        if prepared.analysis.is_detected:
            language = prepared.analysis.language
        elif prepared.source is not None and language not in {None, prepared.analysis.language}:
            document = replace(prepared.source, language=language)
            analysis, dates_due = analyse(Analyser(), document, max_bytes=max_bytes)
            prepared = replace(prepared, analysis=analysis, dates_due=dates_due)
        with_languages.append(entry if prepared is entry.prepared else replace(entry, prepared=prepared))
    return with_languages, language


def filter_dated(entries: Sequence[CopiedEntry], texts: Mapping[UUID, str]) -> list[UUID]:
    """Return the copied entries whose texts may have relative dates."""
    return [entry.entry_id for entry in entries if may_have_dates(texts[entry.entry_id], entry.language)]


def resolve_entry_dates(item: tuple[UUID, IndexDocument]) -> DatedEntry | None:
    """Resolve the dates in the document of a turn; None without dates. Blocking."""
    turn_id, document = item
    language = document.language or DEFAULT
    resolved = resolve_dates(document.text, occurred_at=document.occurred_at, code=language)
    if not resolved:
        return None
    words = date_words(resolved, said_on=document.occurred_at.date(), code=language)
    lexemes = list(dict.fromkeys(Analyser().lexemes(words, language=language)))
    literal = " ".join(f"{quote_lexeme(lexeme)}:{place}" for place, lexeme in enumerate(lexemes, start=1))
    dates = [
        {"start": d.start, "end": d.end, "first_day": d.first_day.isoformat(), "last_day": d.last_day.isoformat()}
        for d in resolved
    ]
    return DatedEntry(turn_id, json.dumps(dates), literal, len(lexemes))
