"""The bus in the service: started with it, shown in its metrics, needed by nothing, and silent about its login."""

import asyncio
import io
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from app.core.bus.messages import ThrottledCall
from app.core.bus.nats import NatsBus, NatsCluster
from app.core.bus.notify import NotifyBus
from app.core.database.transactions import APP_ROLE
from app.core.jobs import NewJob
from app.core.telemetry import configure_logging
from app.index.schemas import DATES_JOB
from app.settings import Settings
from app.settings.server import BusSettings
from tests.bus.bus_servers import RecordingListener, replica, until
from tests.support.api import open_service
from tests.support.nats import NatsServer
from tests.support.postgres import TestDatabase

DOWN = "nats://ann:s3cret@127.0.0.1:9"


@pytest.mark.slow
async def test_a_job_wakes_the_worker_of_another_process(database: TestDatabase, tmp_path: Path) -> None:
    async with (
        open_service(database, tmp_path / "one") as one,
        open_service(database, tmp_path / "two", worker_in_process=True, job_poll_s=60) as two,
    ):
        container = one.container
        await two.run_jobs()
        async with await one.new_tenant() as client:
            await asyncio.sleep(0.3)  # until the worker of the other has nothing to do
            async with container.database.transaction(client.tenant_id) as tx:
                await container.queue.enqueue(tx, client.tenant_id, [NewJob(DATES_JOB)])
            async with asyncio.timeout(60):
                while (await client.get("/v1/admin/jobs")).json()["data"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_service_starts_and_is_ready_while_nats_is_down(database: TestDatabase, tmp_path: Path) -> None:
    async with open_service(database, tmp_path, nats_url=SecretStr(DOWN)) as service, service.client(None) as anybody:
        assert (await anybody.get("/readyz")).status_code == 200
        assert "turnkeep_bus_connected 0.0" in (await anybody.get("/metrics")).text
        assert "s3cret" not in repr(service.settings)


async def test_metrics_say_that_the_bus_is_connected(database: TestDatabase, tmp_path: Path) -> None:
    async with open_service(database, tmp_path) as service, service.client(None) as anybody:
        assert "turnkeep_bus_connected 1.0" in (await anybody.get("/metrics")).text


async def test_a_wider_login_takes_on_the_application_role(database: TestDatabase) -> None:
    bus = NotifyBus(database.superuser, role=APP_ROLE, application="bus-test-{}")
    listener = RecordingListener()
    await bus.start(listener.callbacks)
    assert bus.connected()
    assert await bus._link._listening.fetchval("select current_user") == APP_ROLE  # type: ignore[union-attr]  # noqa: SLF001
    await bus.close()


async def test_a_login_in_the_url_is_used_and_never_logged(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, "--user", "ann", "--pass", "p@ss/word")
    server.start()
    log = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, log)
    try:
        where = f"127.0.0.1:{server.port}"
        good, wrong, plain, mixed = (
            NatsBus(NatsCluster.from_urls(url), settings=BusSettings(nats_subject="test"))
            for url in (
                f"nats://127.0.0.1:9,nats://ann:p%40ss%2Fword@{where}",
                f"nats://ann:wr0ng@{where}",
                f"tls://ann:p%40ss%2Fword@{where}",
                f"nats://ann:p%40ss%2Fword@{where},tls://127.0.0.1:9",
            )
        )
        for bus in (good, wrong, plain, mixed):
            await replica(bus)
        await until(good.connected)
        assert not wrong.connected()
        assert not plain.connected(), "a server without TLS was spoken to in the clear"
        assert not mixed.connected()
        server.kill()
        await until(lambda: not good.connected())
        server.start()
        await until(good.connected)
        for bus in (good, wrong, plain, mixed):
            await bus.close()
    finally:
        configure_logging(Settings(log_level="error").telemetry)
        server.kill()
    lines = log.getvalue()
    assert lines.count('"bus.connected"') == 2
    assert lines.count('"bus.disconnected"') in {4, 5}, lines  # the first try of `good` may have been its first server
    assert "ss/word" not in lines
    assert "wr0ng" not in lines
    assert "ann" not in lines


@pytest.mark.parametrize(
    "url",
    ["", "http://x", "nats://", "nats://u:p@h:0", "nats://u:p@h:x", "nats://h,", "nats://u:s3/cret@h", "nats://[x"],
)
def test_what_is_no_nats_url_stops_the_start_without_being_quoted(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(nats_url=SecretStr(url))
    (wrong,) = caught.value.errors(include_input=False, include_url=False, include_context=False)
    assert wrong["msg"].startswith("Value error, a NATS URL is like")


def test_nats_urls_may_be_several_and_the_first_login_is_for_all() -> None:
    urls = "nats://a.example, tls://tok%2Fen@b.example:4333/"
    assert Settings(nats_url=SecretStr(urls)).bus.nats_url is not None
    options = NatsCluster.from_urls(urls)
    assert options.servers == ["nats://a.example", "tls://b.example:4333"]
    assert (options.user, options.password, options.token) == (None, None, "tok/en")


@pytest.mark.parametrize("subject", ["", "a.*", "a.>", "a b", "a..b", ".a"])
def test_a_subject_has_no_wildcards_and_no_spaces(subject: str) -> None:
    with pytest.raises(ValidationError):
        Settings(nats_subject=subject)


async def test_what_is_asked_for_often_is_done_at_once_and_once_more() -> None:
    calls: list[float] = []
    clock = asyncio.get_running_loop().time
    call = ThrottledCall(lambda: calls.append(clock()), interval_s=0.05)
    for _ in range(100):
        call()
    assert len(calls) == 1
    await asyncio.sleep(0.12)
    assert len(calls) == 2
    call()
    assert len(calls) == 3
