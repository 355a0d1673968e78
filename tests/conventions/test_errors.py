"""Every kind of error has its place in the tables of the transports."""

from app.core import errors
from app.core.errors import AppError
from app.routers.http.problems import STATUS_OF_KIND

KINDS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, AppError) and value is not AppError
]


def test_every_kind_of_error_is_mapped_to_a_status() -> None:
    assert {kind.kind for kind in KINDS} == set(STATUS_OF_KIND)


def test_what_may_be_sent_again_is_of_a_status_that_allows_it() -> None:
    for kind in KINDS:
        assert not kind.retryable or STATUS_OF_KIND[kind.kind] in {409, 429, 503}, kind
