"""Parts of the statements that search a large scope: its conditions, and BM25 with the words of a query as columns.

Words are number columns, one per word of the query, since arrays cost several times as much to build, count and sum.

Literal SQL: search is hot.
"""

from collections.abc import Sequence
from typing import Final

from app.core.ids import TenantId
from app.index.analyser.analyser import quote_lexeme
from app.index.analyser.languages import CODES
from app.index.schemas import BM25_B, BM25_K1, EntryKind, SearchScope

_LANGUAGES: Final = ", ".join(f"'{code}'" for code in CODES)
LANGUAGE_PLACE: Final = f"(array_position(array[{_LANGUAGES}], e.language) - 1)"
"""The place of the language of an entry `e` in `CODES`."""

# the sum of 1/i² for all i, π²/6, by which Postgres divides
_ALL_SQUARES: Final = 1.64493406685


class StatementArguments:
    """The arguments of one statement, numbered as they are added."""

    def __init__(self, *values: object) -> None:
        self.values: list[object] = list(values)

    def add(self, value: object) -> str:
        """Add an argument; return its placeholder."""
        self.values.append(value)
        return f"${len(self.values)}"


class WordColumns:
    """The words of a query in a statement: a column `t1`, `t2` … each, in their order.

    The number of columns is rounded up with empty words, since a connection caches each prepared statement.
    """

    def __init__(self, args: StatementArguments, lexemes: Sequence[str]) -> None:
        self._queries = [args.add(quote_lexeme(lexeme)) for lexeme in lexemes]
        self._queries += [args.add("") for _ in range(_room(len(lexemes)) - len(lexemes))]

    def _each(self, item: str) -> list[str]:
        """Repeat an item for each word, with its number for `#`."""
        return [item.replace("#", str(number)) for number, _ in enumerate(self._queries, start=1)]

    def _listed(self, item: str) -> str:
        """Repeat an item for each word, each after a comma, so that no word gives an empty text."""
        return "".join(f", {column}" for column in self._each(item))

    def counted(self, lexemes: str) -> str:
        """Return columns with the count of each word in a tsvector, as a list continuation; null for null.

        For a single word that occurs n times, the rank with all weights 1 is the sum of 1/i² for i to n, divided by
        that sum for all i. The inverse, from the first terms of the trigamma function and rounded, is exact for 0 to
        255 positions, the limit of a tsvector. This is the fastest way to count in Postgres: cover density takes three
        times as long, and `unnest` far longer.
        """
        ranks = [f"ts_rank('{{1,1,1,1}}', {lexemes}, {query}::tsquery)" for query in self._queries]
        return "".join(
            f", round(1 / ({_ALL_SQUARES} * (1 - {rank})) - 0.5) as t{number}"
            for number, rank in enumerate(ranks, start=1)
        )

    def bm25(self, entry: str, weights: str) -> str:
        """Return the BM25 of an entry with its words' columns and `norm`, for given word weights."""
        terms = self._each(f"{weights}.w# * {entry}.t# / ({entry}.t# + {entry}.norm)")
        return f"coalesce({' + '.join(terms)}, 0)" if terms else "0::float8"

    def share(self, entry: str, weights: str) -> str:
        """Return the sum of the weights of the words that an entry has, with its words' columns."""
        terms = self._each(f"case when {entry}.t# > 0 then {weights}.w# else 0 end")
        return " + ".join(terms) if terms else "0::float8"

    def given(self, args: StatementArguments, weights: Sequence[float]) -> str:
        """Return columns `w1` … of known weights, as a list continuation."""
        padded = [*weights, *[0.0] * (len(self._queries) - len(weights))]
        return "".join(f", {args.add(weight)}::float8 as w{number}" for number, weight in enumerate(padded, start=1))


def _room(count: int) -> int:
    """Return the next larger of 0, 4, 8, 12, 16, 24, 32, 48, 64 and so on."""
    step = 4 if count <= 16 else 8 if count <= 32 else 16  # noqa: PLR2004 - as the docstring lists
    return -(-count // step) * step


def norm(doc_length: str, mean_length: str) -> str:
    """Return the BM25 length normalisation: larger in entries that are longer than the mean."""
    return f"({BM25_K1 * (1 - BM25_B)} + {BM25_K1 * BM25_B}::float8 * {doc_length} / {mean_length})"


class SearchStatement:
    """The condition of a scope, and the arguments of a statement.

    Lookups and hashes are used instead of joins: right after a start the tables have no statistics, and a join planned
    for one row takes quadratic time.
    """

    def __init__(self, tenant_id: TenantId, scope: SearchScope) -> None:
        self.args = StatementArguments(tenant_id)
        self.where = self._conditions(scope)

    def _conditions(self, scope: SearchScope) -> str:
        arg = self.args.add
        conditions = ["e.tenant_id = $1", "e.live", f"e.kind = any({arg([k.value for k in scope.kinds])}::text[])"]
        if scope.conversation_ids is not None:
            conditions.append(f"e.conversation_id = any({arg(list(scope.conversation_ids))}::uuid[])")
        if scope.project is not None:
            is_of_project = f"e.project = {arg(scope.project)}"
            # a fact without a project belongs to all projects, or to several that only its owner knows
            is_fact = EntryKind.FACT in scope.kinds
            conditions.append(
                f"({is_of_project} or (e.kind = 'fact' and e.project = ''))" if is_fact else is_of_project
            )
        if scope.owner is not None:
            conditions.append(f"e.owner = {arg(scope.owner)}")
        conditions += self._of_memories(scope)
        if scope.actors is not None:
            conditions.append(f"e.actor = any({arg(list(scope.actors))}::text[])")
        if scope.roles is not None:
            conditions.append(f"e.role = any({arg(list(scope.roles))}::text[])")
        if scope.occurred_after is not None:
            conditions.append(f"e.occurred_at > {arg(scope.occurred_after)}")
        if scope.occurred_before is not None:
            conditions.append(f"e.occurred_at < {arg(scope.occurred_before)}")
        if scope.metadata is not None:
            conditions.append(f"e.metadata @> {arg(scope.metadata)}::jsonb")
        return " and ".join(conditions)

    def _of_memories(self, scope: SearchScope) -> list[str]:
        """Return the conditions of memories; none if no memory is searched."""
        if EntryKind.MEMORY not in scope.kinds:
            return []
        conditions = ["(e.expires_at is null or e.expires_at > statement_timestamp())"]
        if scope.agent_id is not None:
            is_of_agent = f"e.agent_id = {self.args.add(scope.agent_id)}"
            # a separate condition if possible, because only then its index is used
            conditions.append(
                is_of_agent if set(scope.kinds) == {EntryKind.MEMORY} else f"(e.kind <> 'memory' or {is_of_agent})"
            )
        return conditions
