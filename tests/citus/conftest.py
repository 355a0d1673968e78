"""A Citus of one coordinator and two workers, where TURNKEEP_TEST_CITUS names its programs."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from app.core.database import schema
from tests.support.api import Client, Service, open_service
from tests.support.citus import CitusDatabase, CitusNodes, CitusServers, required_programs
from tests.support.postgres import (
    TestDatabase,
    clone_template,
    connect_nodes,
    drop_database,
    make_template,
    prepare_server,
    superuser,
)


@pytest.fixture(scope="session")
def nodes() -> Iterator[CitusNodes]:
    """The nodes, for this worker alone."""
    started = CitusNodes(required_programs())
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def servers(nodes: CitusNodes) -> CitusServers:
    """URLs on the nodes, in the place of the server of the other tests."""
    return CitusServers(nodes)


@pytest.fixture(scope="module")
async def empty(servers: CitusServers) -> AsyncIterator[CitusDatabase]:
    """A database on the nodes as an administrator prepares it: roles and extensions, and no tables."""
    name = f"turnkeep_citus_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    async with superuser(servers) as connection:
        await connect_nodes(servers, connection, database=name)
        await prepare_server(servers, connection, database=name)
    await schema.prepare_extensions(servers.url(None, name))
    places = range(1, len(servers.nodes.ports))
    prepared = CitusDatabase(name, servers.database(name), [servers.nodes.url(p, "postgres", name) for p in places])
    await prepared.fetch(f"alter database {name} owner to {schema.OWNER_ROLE}")
    yield prepared
    await drop_database(servers, name)


# not those of the other tests, which are made once for all of them


@pytest.fixture(scope="session")
async def database(servers: CitusServers) -> AsyncIterator[TestDatabase]:
    """A distributed database."""
    name = f"turnkeep_nodes_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    yield await clone_template(servers, name)
    await drop_database(servers, name)


@pytest.fixture(scope="session")
async def service(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """An app on it."""
    async with open_service(database, tmp_path_factory.mktemp("data")) as opened:
        yield opened


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    """A client of a fresh tenant."""
    async with await service.new_tenant() as opened:
        yield opened


@pytest.fixture
async def other(service: Service) -> AsyncIterator[Client]:
    """A client of another fresh tenant."""
    async with await service.new_tenant() as opened:
        yield opened
