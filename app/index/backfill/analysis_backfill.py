"""Analysis of entries that an older release wrote, or an older version of the analyser: their cues and terms.

`plan` enqueues one job for each tenant with such entries. That job analyses some thousand in the order of ids and
enqueues its continuation. The texts are read from the owners of the entries. Of English texts the stored lexemes are
right, with the words of resolved dates, and the terms are packed from them. Of others the lexemes are made again, and
the dates are resolved again. A text that shows no language has that of the turn before it.

Nothing that is written meanwhile is overwritten: each change of a text inserts, updates or deletes its entry in the
same transaction. An entry is read before its text, and its analysis is stored only if no transaction has changed the
entry since. Otherwise the entry is found again by the next `plan`.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from app.core.database.transactions import Database
from app.core.jobs import JobQueue, NewJob
from app.core.telemetry import get_logger
from app.core.threads import map_in_threads, pause_after_step
from app.index.analyser.analyser import Analyser, indexed_text
from app.index.analyser.cues import Cue, read_cues
from app.index.analyser.languages import DEFAULT
from app.index.analyser.terms import pack_terms, parse_tsvector
from app.index.analyser.words import has_other_script
from app.index.backfill import analysis_store
from app.index.backfill.analysis_store import EntryAnalysis, UnanalysedEntry
from app.index.schemas import ANALYSIS_JOB, DATES_JOB, EntryKind, IndexDocument
from app.index.write.batch_analyser import analyse
from app.settings.memory import IndexSettings
from app.tenancy.schemas import Caller

TextReader: TypeAlias = Callable[[Caller, Sequence[UUID]], AsyncIterator[Mapping[UUID, str]]]
"""A function that yields the indexed texts of objects of one kind, by their ids, in batches that fit into memory.

Objects whose source is gone or superseded are left out.
"""

_FIRST: Final = UUID(int=0)
_TENANTS: Final = 1_000
_ENTRIES: Final = 200
# bounds the memory for lexemes: about 4 MB
_WORDS: Final = 200_000
_STEPS_PER_JOB: Final = 10
# waiting requests, and jobs with their own due time, have a higher priority
_PRIORITY: Final = -1
_PASSING: Final = ("database_unavailable", "resource_busy", "job_timeout")
"""Errors that end by themselves; jobs that failed by a bug stay parked."""


class AnalysisBackfill:
    """Backfill of analyses, separate from the append."""

    def __init__(
        self, database: Database, ops: Database, *, readers: Mapping[EntryKind, TextReader], jobs: JobQueue,
        settings: IndexSettings,
    ) -> None:  # fmt: skip
        """`readers` may be filled later, while the process starts."""
        self._database = database
        self._ops = ops
        self._readers = readers
        self._jobs = jobs
        self._max_bytes = settings.index_text_bytes
        self._language = settings.forced_language
        self._log = get_logger()

    async def plan(self) -> int:
        """Enqueue a job for every tenant with entries to analyse; return the number."""
        count = 0
        after = _FIRST
        while True:
            async with self._ops.across_tenants() as tx:
                tenants = await analysis_store.find_unanalysed_tenants(tx, after=after, limit=_TENANTS)
                for tenant_id in tenants:
                    await self._jobs.enqueue(tx, tenant_id, [_job(None)])
            count += len(tenants)
            if len(tenants) < _TENANTS:
                break
            after = tenants[-1]
        await self._jobs.requeue_parked([ANALYSIS_JOB], codes=_PASSING, limit=_TENANTS)
        return count

    async def run(self, caller: Caller, *, after: UUID | None) -> None:
        """Analyse some thousand entries of a tenant after `after`, and enqueue the job for the next ones."""
        count = 0
        last = after or _FIRST
        for _ in range(_STEPS_PER_JOB):
            began = time.monotonic()
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                entries = await analysis_store.find_unanalysed(
                    tx, caller.tenant_id, after=last, limit=_ENTRIES, max_words=_WORDS
                )
            if not entries:
                break
            analyses = await self._analyse(caller, entries)
            async with self._database.transaction(caller.tenant_id) as tx:
                written = await analysis_store.write_analyses(tx, caller.tenant_id, analyses)
                due_ids = {one.entry_id for one in analyses if one.dates_due} & written
                dated = [entry.source_id for entry in entries if entry.entry_id in due_ids]
                await self._jobs.enqueue(tx, caller.tenant_id, _dates_jobs(dated))
            count += len(written)
            last = entries[-1].entry_id
            await pause_after_step(began)
        else:
            async with self._database.transaction(caller.tenant_id) as tx:
                await self._jobs.enqueue(tx, caller.tenant_id, [_job(last)])
        self._log.info("entries.analysed", tenant_id=caller.tenant_id, count=count)

    async def _analyse(self, caller: Caller, entries: Sequence[UnanalysedEntry]) -> list[EntryAnalysis]:
        # in the order of turns, which need not be that of ids
        ordered = sorted(entries, key=lambda one: (one.conversation_id or _FIRST, one.position or 0))
        analyser = _EntryAnalyser(self._max_bytes, self._language)
        done: dict[UUID, EntryAnalysis] = {}
        for kind, read in self._readers.items():
            by_source = {one.source_id: one for one in ordered if one.kind == kind}
            if not by_source:
                continue
            async for texts in read(caller, list(by_source)):
                found = [(by_source[source_id], text) for source_id, text in texts.items()]
                made = await map_in_threads(analyser.analyse, found, size=lambda one: len(one[1]))
                done |= {one.entry_id: one for one in made}
        # without a text, an entry keeps the only cue that it has: so it is not found again by each plan
        left = [one for one in entries if one.entry_id not in done]
        return [*done.values(), *await map_in_threads(_without_text, left, size=lambda one: len(one.lexemes))]


class _EntryAnalyser:
    """The analyser of entries and their texts, in the order of the turns of each conversation."""

    def __init__(self, max_bytes: int, language: str | None) -> None:
        self._max_bytes = max_bytes
        self._analyser = Analyser(language)
        self._last: dict[UUID, str] = {}

    def analyse(self, item: tuple[UnanalysedEntry, str]) -> EntryAnalysis:
        """Analyse the text of an entry. Blocking."""
        entry, text = item
        text = indexed_text(text, max_bytes=self._max_bytes)
        language = self._analyser.detect(text) or self._language_before(entry) or DEFAULT
        if entry.conversation_id is not None and entry.kind == EntryKind.TURN:
            self._last[entry.conversation_id] = language
        if language == DEFAULT and not has_other_script(text):
            cues, terms = read_cues(text), pack_terms(parse_tsvector(entry.lexemes))
            return EntryAnalysis(entry.entry_id, entry.changed, cues, terms, language)
        document = IndexDocument(text, entry.actor or "", entry.occurred_at, language)
        made, dates_due = analyse(self._analyser, document, max_bytes=self._max_bytes)
        return EntryAnalysis(
            entry.entry_id, entry.changed, made.cues, made.terms, language, made.tsvector, made.length,
            dates_due=dates_due and entry.kind == EntryKind.TURN,
        )  # fmt: skip

    def _language_before(self, entry: UnanalysedEntry) -> str | None:
        if entry.conversation_id is None or entry.kind != EntryKind.TURN:
            return None
        return self._last.get(entry.conversation_id, entry.language_before)


def _without_text(entry: UnanalysedEntry) -> EntryAnalysis:
    terms = pack_terms(parse_tsvector(entry.lexemes))
    return EntryAnalysis(entry.entry_id, entry.changed, Cue.ASKS * entry.asks, terms, DEFAULT)


def _dates_jobs(entry_ids: Sequence[UUID]) -> list[NewJob]:
    return [NewJob(DATES_JOB, subject_ids=entry_ids, priority=_PRIORITY)] if entry_ids else []


def _job(after: UUID | None) -> NewJob:
    """Return the job of a tenant. The subject is the entry to continue after."""
    subjects = () if after is None else (after,)
    return NewJob(ANALYSIS_JOB, subject_ids=subjects, dedupe_key="analysis", priority=_PRIORITY)
