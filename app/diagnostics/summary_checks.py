"""Invariants of the summaries of a conversation, its turns and its head. Pure: rows in, faults out."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from uuid import UUID

from app.diagnostics.schemas import Fault
from app.diagnostics.summary_store import CheckedSummary, Covered, MarkRow

_SUMMARY = "summary"


def check_coverage(
    tenant_id: UUID, conversation_id: UUID, mark: MarkRow, summaries: Sequence[CheckedSummary], covered: Covered
) -> Iterator[Fault]:
    """Check the summaries, and the head's marks of what they cover."""

    def fault(code: str, detail: str, object_id: UUID | None = None) -> Fault:
        return Fault(code, detail, tenant_id, conversation_id, object_id)

    valid = [row for row in summaries if row.is_valid]
    for row, after in pairwise(valid):
        if after.from_position <= row.to_position:
            yield fault("summary_overlap", f"begins at {after.from_position}, one ends at {row.to_position}", after.id)
    for row in summaries:
        for code, detail in _of_summary(row, mark, covered):
            yield fault(code, detail, row.id)
    reach = _reach(valid, mark.erased_position)
    for name, stated, computed in (
        ("summarized_position", mark.position, reach),
        ("summarized_turns", mark.turns, covered.turns),
        ("summarized_tokens", mark.tokens, covered.tokens),
    ):
        if stated != computed:
            yield fault("mark_wrong", f"{name} is {stated}, summaries and turns make {computed}")
    if mark.through != covered.last:
        yield fault("mark_wrong", "summarized_through is not the last live turn that is summarised", mark.through)
    if mark.erased_position > covered.last_position:
        yield fault("mark_wrong", f"erased_position is {mark.erased_position}, the last is {covered.last_position}")


def _of_summary(row: CheckedSummary, mark: MarkRow, covered: Covered) -> Iterator[tuple[str, str]]:
    if row.to_position > covered.last_position:
        yield "summary_beyond", f"it reaches to {row.to_position}, the last position is {covered.last_position}"
    if not row.replaced_well:
        yield "summary_lost", "replaced_by names no summary of the conversation"
    if row.kind == _SUMMARY:
        if row.entry_live is not row.is_valid:
            yield "summary_unfound", "the index finds a replaced summary, or does not find a valid one"
        return
    if row.from_position <= mark.erased_position and (row.lines or not row.is_valid):
        yield "erased_remains", "highlights cover turns that retention has erased"
    if row.lines_lost:
        yield "erased_remains", f"{row.lines_lost} lines are of turns that do not say them, in its range, any more"


def _reach(valid: Sequence[CheckedSummary], erased_position: int) -> int:
    """Return the last position that summaries cover without a gap, computed independently of the service."""
    position = erased_position
    for row in valid:
        if row.from_position > position + 1:
            break
        position = max(position, row.to_position)
    return position
