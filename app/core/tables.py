"""What all table definitions share: the metadata that migrations are compared with, and Postgres types of ours.

Tables are described here and in each capability's `models.py` so that a test can hold them against the migrations;
queries are written as SQL in `store.py`.
"""

from sqlalchemy import MetaData
from sqlalchemy.types import UserDefinedType

METADATA = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


class Vector(UserDefinedType[object]):
    """pgvector's `vector` without fixed dimensions: one table holds the vectors of every embedding space."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        """The type's name in DDL."""
        return "vector"
