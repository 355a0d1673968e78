"""The turns and summaries that a context may show, read in pages within one snapshot of the database.

The number of turns read depends on the query and on the stored token counts, not on the length of the conversation.
`OmittedTurns` describes the turns that a finished context does not show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.conversations.find import get_conversation, last_position
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.summaries import SummaryKind, ValidSummary
from app.conversations.stores import summary_store, turn_list_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.summaries.invalidation import covered_through, valid_summary
from app.conversations.views import canonical_turn
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId
from app.formats.schemas import CanonicalTurn
from app.formats.turns import call_key
from app.tenancy.schemas import Caller

_PAGE = 200
# turns beyond the newest that were requested: some of those may have nothing to show, or results of older calls
_EXTRA_TURNS = 8
# the call of a result is searched in this many positions before the pages
_EXCHANGE_REACH = 200
# minimum of tokens that a format adds to the text of a message
_MESSAGE_TOKENS = 4
# tokens of the text around a summary
_NOTE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class ContextTurnsQuery:
    """The turns that a context requests.

    `newest`: the number of newest turns. `max_tokens`: older turns that no summary covers are read until all turns read
    have this many tokens. `without_summary`: read these older turns even if there is no summary. `accepts`: returns
    whether a summary may be used; None if none may. `before`: a position; this turn and all later ones are ignored.
    """

    newest: int
    max_tokens: int
    without_summary: bool
    accepts: Callable[[ValidSummary], bool] | None
    actors: Sequence[str] | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """A valid summary. `unread_tokens`: lower bound of the tokens of live turns under it that were not read."""

    summary: ValidSummary
    unread_tokens: int


@dataclass(frozen=True, slots=True)
class ContextTurns:
    """The result of the read: live turns by position, and summaries by range, without gaps between them.

    `seq` and `last_position`: the last ones that were considered. `is_erased`: retention has erased turns that no
    summary covers; it has erased all turns through `erased_position`.
    """

    turns: Sequence[CanonicalTurn]
    seq: int
    last_position: int
    participants: Sequence[Participant]
    more_before: bool
    project: str
    owner: str | None
    summaries: Sequence[ReadSummary] = ()
    is_erased: bool = False
    erased_position: int = 0


@dataclass(frozen=True, slots=True)
class OmittedTurns:
    """The live turns in some ranges of positions: the number and range of those with content, and the number erased."""

    turns: int
    from_position: int | None
    to_position: int | None
    erased: int


async def read_context_turns(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, *, wanted: ContextTurnsQuery, max_bytes: int
) -> ContextTurns:
    """Read what a context may show. To read summaries, the transaction must be one snapshot. Raises NotFound."""
    head = await get_conversation(caller, tx, conversation_id)
    last_considered = last_position(head) if wanted.before is None else min(last_position(head), wanted.before - 1)
    summaries: list[ValidSummary] = []
    if wanted.accepts is not None and head.summarized_position:
        rows = await summary_store.list_valid(tx, caller.tenant_id, conversation_id)
        reach = min(head.summarized_position, last_considered)
        summaries = [valid_summary(row) for row in rows if row.to_position <= reach]
    accepted = [summary for summary in summaries if wanted.accepts is not None and wanted.accepts(summary)]
    pages = _Pages(
        caller, tx, ConversationId(head.id), actors=wanted.actors, last=last_considered, bytes_left=max_bytes
    )
    await _read_newest(pages, head, wanted, accepted)
    unread = {
        summary.id: await _unread_tokens(pages, head, summary, is_only=len(accepted) == 1) for summary in accepted
    }
    return ContextTurns(
        turns=pages.turns(),
        seq=min(head.last_seq, last_considered),
        last_position=last_considered,
        participants=[Participant.model_validate(item) for item in head.participants],
        more_before=pages.has_more,
        project=head.project,
        owner=head.owner,
        summaries=[ReadSummary(summary, unread.get(summary.id, 0)) for summary in summaries],
        is_erased=wanted.accepts is not None
        and covered_through(summaries, erased_position=0) < min(head.erased_position, last_considered),
        erased_position=head.erased_position,
    )


async def count_omitted(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, *, ranges: Sequence[tuple[int, int]]
) -> OmittedTurns:
    """Count the live turns in these ranges of positions, both ends included."""
    return OmittedTurns(*await turn_store.count_in_ranges(tx, caller.tenant_id, conversation_id, ranges))


async def _read_newest(
    pages: "_Pages", head: ConversationRow, wanted: ContextTurnsQuery, accepted: Sequence[ValidSummary]
) -> None:
    """Read the newest turns, then older ones that no summary covers, as far as they may fit."""
    first_uncovered = 1 + covered_through(accepted, erased_position=head.erased_position)
    is_current = first_uncovered > head.summarized_position
    uncovered = head.turn_count - (head.summarized_turns if is_current else 0)
    reads_uncovered = wanted.without_summary or bool(accepted)
    await pages.read(max(wanted.newest + _EXTRA_TURNS, min(uncovered, _PAGE) if reads_uncovered else 0))
    while reads_uncovered and pages.tokens < wanted.max_tokens and pages.can_go_on:
        covering = _with_unread_lines(pages, accepted) if wanted.without_summary else accepted
        if pages.oldest <= 1 + covered_through(covering, erased_position=head.erased_position):
            break
        await pages.read(_PAGE)
    if wanted.actors is None:
        await _complete_exchanges(pages, wanted)


def _with_unread_lines(pages: "_Pages", summaries: Sequence[ValidSummary]) -> list[ValidSummary]:
    """Return the summaries without those highlights whose lines are all from turns that were read.

    A context that shows these turns does not show such highlights, and has to show all turns under them.
    """
    read = {row.id for row in pages.rows}
    return [
        summary
        for summary in summaries
        if summary.kind is not SummaryKind.HIGHLIGHTS or any(line.turn_id not in read for line in summary.lines)
    ]


async def _complete_exchanges(pages: "_Pages", wanted: ContextTurnsQuery) -> None:
    """Read back to the calls of results that were read, so that no exchange is split at the edge of the pages."""
    newest = pages.rows[: wanted.newest]
    if not pages.can_go_on or not any(row.tool_call_id or row.tool_results for row in newest):
        return
    called = {call_key(call.id) for row in pages.rows if row.tool_calls for call in canonical_turn(row).tool_calls}
    results = [result for row in newest if row.tool_results for result in canonical_turn(row).tool_results]
    answered = {call_key(result.tool_call_id) for result in results}
    answered |= {call_key(row.tool_call_id) for row in newest if row.tool_call_id is not None}
    position = await pages.first_call(sorted(answered - called)) if answered - called else None
    if position is not None:
        await pages.read(_EXCHANGE_REACH, after=position - 1)


async def _unread_tokens(pages: "_Pages", head: ConversationRow, summary: ValidSummary, *, is_only: bool) -> int:
    """Return a lower bound of the tokens of turns under a summary that were not read.

    If they may be fewer than those of the summary, the turns are read, because a context may show them instead.
    """
    if not pages.has_more or summary.from_position >= pages.oldest or summary.to_position <= head.erased_position:
        return 0
    enough = summary.tokens + _NOTE_TOKENS
    if is_only:
        read = sum(row.content_tokens for row in pages.rows if (row.position or 0) <= summary.to_position)
        if (unread := head.summarized_tokens - read) > enough:
            return unread
    return await pages.read_range(summary.from_position, min(summary.to_position, pages.oldest - 1), max_tokens=enough)


@dataclass(slots=True)
class _Pages:
    """Live turns of one conversation that were read so far, newest first, back to the position `oldest`.

    `others` are turns that were read in addition: answers to calls, and turns under a summary.
    """

    caller: Caller
    tx: Transaction
    conversation_id: ConversationId
    actors: Sequence[str] | None
    last: int
    bytes_left: int
    rows: list[TurnRow] = field(default_factory=list[TurnRow])
    others: list[TurnRow] = field(default_factory=list[TurnRow])
    tokens: int = 0
    has_more: bool = True

    @property
    def can_go_on(self) -> bool:
        """Return whether there are older turns, and room for their text."""
        return self.has_more and self.bytes_left > 0

    @property
    def oldest(self) -> int:
        """Return the position of the oldest turn of the pages."""
        return (self.rows[-1].position or 0) if self.rows else self.last + 1

    def turns(self) -> list[CanonicalTurn]:
        """Return all turns that were read, by position."""
        rows = {row.id: row for row in (*self.rows, *self.others)}
        return [canonical_turn(row) for row in sorted(rows.values(), key=lambda row: row.position or 0)]

    async def read(self, limit: int, *, after: int | None = None) -> None:
        """Read the next older turns, and with `actors` the results of their calls, by any actor."""
        rows, cut = await self._list(after=after, before=self.oldest, limit=limit + 1)
        # a page that ends at a given position does not show whether there are older turns
        self.has_more = cut or len(rows) > limit or bool(after)
        page = rows[:limit]
        self.rows += page
        self.tokens += _tokens(page)
        if self.actors is not None:
            self.others += await self._answers(page)

    async def read_range(self, first: int, last: int, *, max_tokens: int) -> int:
        """Read the turns in a range of positions if they have at most `max_tokens`; return the tokens left unread."""
        limit = max_tokens // _MESSAGE_TOKENS + 1
        page, cut = await self._list(after=first - 1, before=last + 1, limit=limit)
        tokens = _tokens(page)
        if cut or len(page) == limit or tokens > max_tokens:
            return max(tokens, max_tokens + 1)
        self.others += page
        return 0

    async def first_call(self, call_ids: Sequence[str]) -> int | None:
        """Return the position of the first turn, shortly before `oldest`, that makes one of these calls."""
        return await turn_store.first_call(
            self.tx,
            self.caller.tenant_id,
            self.conversation_id,
            call_ids,
            after=self.oldest - 1 - _EXCHANGE_REACH,
            before=self.oldest,
        )

    async def _list(self, *, after: int | None, before: int, limit: int) -> tuple[list[TurnRow], bool]:
        if self.bytes_left <= 0:
            return [], True
        turns = await turn_list_store.list_turns(
            self.tx,
            self.caller.tenant_id,
            self.conversation_id,
            newest_first=True,
            after=after,
            # turns appended between two statements belong to the next context
            before=before,
            actors=self.actors,
            limit=limit,
            max_bytes=self.bytes_left,
            with_erased=False,
        )
        # counted in characters, which may be fewer than the bytes that the statement counts
        self.bytes_left = 0 if turns.cut else self.bytes_left - sum(_size(row) for row in turns.rows)
        return turns.rows, turns.cut

    async def _answers(self, page: Sequence[TurnRow]) -> list[TurnRow]:
        calls = [call_key(call.id) for row in page if row.tool_calls for call in canonical_turn(row).tool_calls]
        if not calls or self.bytes_left <= 0:
            return []
        answers = await turn_list_store.list_turns(
            self.tx,
            self.caller.tenant_id,
            self.conversation_id,
            newest_first=True,
            role="tool",
            answers=calls,
            after=min(row.position or 0 for row in page),
            before=self.last + 1,
            limit=len(calls),
            max_bytes=self.bytes_left,
        )
        self.bytes_left -= sum(_size(row) for row in answers.rows)
        return answers.rows


def _tokens(rows: Sequence[TurnRow]) -> int:
    return sum(row.content_tokens + _MESSAGE_TOKENS for row in rows)


def _size(row: TurnRow) -> int:
    texts = (row.content, row.tool_calls, row.tool_results, row.usage, row.metadata)
    return sum(len(text) for text in texts if text is not None)
