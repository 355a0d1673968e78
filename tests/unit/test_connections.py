"""URLs that name several servers: which they are, and which one a connection is made to."""

import socket
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest

from app.core.database.connections import connect, find_servers
from tests.support.postgres import TestDatabase


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("postgresql://one/db", [("one", 5432)]),
        ("postgresql://u:p%40@one:5433,two/db?sslmode=require", [("one", 5433), ("two", 5432)]),
        ("postgresql://u@one,two/db?port=6000", [("one", 6000), ("two", 6000)]),
        ("postgresql://u@/db?host=one,two&port=5432,5433", [("one", 5432), ("two", 5433)]),
        ("postgresql://u@/db?host=one:1&host=two:2", [("one", 1), ("two", 2)]),
        ("postgresql://u@[::1]:5433,[fe80::2]/db", [("::1", 5433), ("fe80::2", 5432)]),
        ("postgresql://u@/db?host=/run/postgres&port=5433", [("/run/postgres", 5433)]),
        ("postgresql://u@%2Frun%2Fone,two:7/db", [("/run/one", 5432), ("two", 7)]),
        ("postgresql:///db", []),
    ],
)
def test_a_url_names_its_servers_as_libpq_reads_it(url: str, servers: list[tuple[str, int]]) -> None:
    assert find_servers(url) == servers


@pytest.mark.parametrize("url", ["postgresql://one,two,three/db?port=1,2", "postgresql://one:none,two/db"])
def test_ports_that_fit_no_host_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"port|invalid literal"):
        find_servers(url)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server whose network accepts connections, and that never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        listening.setblocking(False)
        yield listening


def accepted(listening: socket.socket) -> int:
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def beside(database: TestDatabase, silent: socket.socket) -> str:
    """The URL of the silent server and, after it, the one of the tests."""
    (host, port), parts = find_servers(database.app)[0], urlsplit(database.app)
    login = parts.netloc.rpartition("@")[0]
    silent_port = silent.getsockname()[1]
    return f"postgresql://{login}@{parts.path}?host=127.0.0.1,{quote(host)}&port={silent_port},{port}"


async def test_a_server_that_does_not_answer_is_passed_over_and_tried_last_from_then_on(
    database: TestDatabase, silent: socket.socket
) -> None:
    url = beside(database, silent)
    for tries in (1, 0):
        connection = await connect(url, timeout_s=2)
        assert await connection.fetchval("select 1") == 1
        await connection.close()
        assert accepted(silent) == tries


async def test_if_no_server_is_usable_the_last_error_is_raised(silent: socket.socket) -> None:
    port = silent.getsockname()[1]
    with pytest.raises(TimeoutError):
        await connect(f"postgresql://u@127.0.0.1:{port},127.0.0.1:{port}/db", timeout_s=0.2)


async def test_a_server_that_accepts_no_writes_is_not_used(database: TestDatabase) -> None:
    (host, port), parts = find_servers(database.superuser)[0], urlsplit(database.superuser)
    login = parts.netloc.rpartition("@")[0]
    url = f"postgresql://{login}@{parts.path}?host={quote(host)},{quote(host)}&port={port}"
    usable = await connect(url)
    await usable.close()
    with pytest.raises(Exception, match="target attribute"):
        await connect(url, server_settings={"default_transaction_read_only": "on"})
