"""Fixtures: one server for all workers, one database for each, one app on it, a fresh tenant for every test."""

import gc
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from app.core.telemetry import configure_logging
from app.settings import Settings
from tests.support.api import Client, Service, open_service
from tests.support.citus import start_citus
from tests.support.contract import never_answered
from tests.support.postgres import (
    CITUS,
    CONTAINER,
    VARIABLE,
    NoContainerError,
    Servers,
    TestDatabase,
    clone_template,
    drop_database,
    make_template,
    start_container,
)
from tests.support.routing import every_statement_routed
from tests.support.runs import pytest_terminal_summary, write_bytecode
from tests.support.shared import share
from tests.support.slow import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]

# an example is not timed: machines are busy
hypothesis_settings.register_profile("untimed", deadline=None)
hypothesis_settings.load_profile("untimed")

collect_ignore_glob = ["soak/long_*"]


@pytest.fixture(scope="session", autouse=True)
def _logging() -> None:
    for name in [name for name in os.environ if name.startswith("TURNKEEP_") and not name.startswith("TURNKEEP_TEST_")]:
        del os.environ[name]
    configure_logging(Settings(log_level="error").telemetry)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder, and the container, that all workers of a run share; workers are told where it is.

    Not below pytest's own folder, which is closed to other users: as root, Postgres runs as one of those.
    """
    write_bytecode()
    share()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    folder = tempfile.mkdtemp(prefix="turnkeep-test-", dir="/tmp")
    Path(folder).chmod(0o711)
    os.environ["TURNKEEP_TEST_FOLDER"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if os.environ.get(VARIABLE) == CONTAINER:
        try:
            os.environ[VARIABLE], stop = start_container()
        except NoContainerError as error:
            raise pytest.UsageError(str(error)) from None
        config.add_cleanup(stop)
    elif os.environ.get(VARIABLE) == CITUS:
        nodes = start_citus()
        config.add_cleanup(nodes.stop)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: every module, and every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a run of all tests of the API: every operation was exercised, and answered at least one of them well."""
    config = session.config
    only_slow = config.option.markexpr.startswith("slow")
    narrowed = config.option.keyword or only_slow or getattr(config.option, "lf", False) or exitstatus != 0
    whole = {"tests", "tests/api"} & {str(argument).rstrip("/") for argument in config.args}
    if narrowed or not whole or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    missing = never_answered(Path(os.environ["TURNKEEP_TEST_FOLDER"]))
    if missing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        raise pytest.UsageError(f"no test got a good answer from: {', '.join(sorted(missing))}")


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The server, started by the first worker and stopped by the last."""
    found = Servers(Path(os.environ["TURNKEEP_TEST_FOLDER"]) / "postgres")
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="session")
async def database(servers: Servers) -> AsyncIterator[TestDatabase]:
    """The own database of this worker."""
    name = f"turnkeep_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    cloned = await clone_template(servers, name)
    async with every_statement_routed(cloned) if servers.workers else nullcontext():
        yield cloned
    await drop_database(servers, name)


@pytest.fixture(scope="session")
async def words_database(servers: Servers) -> AsyncIterator[TestDatabase]:
    """A database of this worker for apps without an embedder.

    Whenever a test has the jobs of `service` done, the vectors of all that stands in `database` without any are made.
    """
    name = f"turnkeep_words_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    yield await clone_template(servers, name)
    await drop_database(servers, name)


@pytest.fixture(scope="session")
async def service(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """The app of this worker."""
    async with open_service(database, tmp_path_factory.mktemp("data")) as opened:
        yield opened


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    """A client of a fresh tenant: that is the isolation between tests."""
    async with await service.new_tenant() as opened:
        yield opened


@pytest.fixture
async def other(service: Service) -> AsyncIterator[Client]:
    """A client of another fresh tenant."""
    async with await service.new_tenant() as opened:
        yield opened
