"""An installation moves from one embedding space to another while it is in use: nothing fails, nothing is lost.

The bundled model is the old space, an endpoint of other dimensions the new one. On a database of its own, with two
replicas that know both.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest

from app.core.database.schema import vector_index_name
from app.core.database.transactions import Database, PoolOptions
from app.core.ids import format_id
from app.diagnostics.schemas import Level
from app.diagnostics.service import DataCheck, examine
from app.index.spaces import administration
from app.index.spaces import runtime as spaces
from app.settings.server import ServerSettings
from app.tenancy.schemas import Scope
from app.worker.handlers import make_worker
from app.worker.runner import working
from tests.support.api import Client, Service, open_service, problem
from tests.support.command import TURNKEEP
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, says
from tests.support.fake_openai import MODEL, FakeOpenAI, open_fake
from tests.support.postgres import Servers, TestDatabase, fetch_as_superuser, own_database
from tests.support.statements import counted_statements, first_words
from tests.support.timing import PATIENT_S

ROOT = Path(__file__).parents[2]
SPACES = "/v1/admin/embedding-spaces"
DIMENSIONS = 1536
NEW = f"openai/{MODEL}/{DIMENSIONS}"
OLD = "local/all-MiniLM-L6-v2-int8/384"
ANIMALS = ["parrot", "tortoise", "kitten", "horse", "salmon", "owl", "beetle", "whale"]


def both(fake: FakeOpenAI, **more: Any) -> dict[str, Any]:
    """Settings of a process that knows the old space and the new one."""
    return {
        "next_embedder": "openai", "next_embeddings_base_url": fake.url, "next_embeddings_model": MODEL,
        "next_embeddings_dimensions": DIMENSIONS, "embeddings_max_retries": 0, "embeddings_timeout_s": PATIENT_S,
        "job_retry_base_s": 0.01, "job_retry_max_s": 0.02, "key_cache_s": 60,
    } | more  # fmt: skip


@pytest.fixture(scope="module")
async def own(servers: Servers) -> AsyncIterator[TestDatabase]:
    async with own_database(servers, "spaces") as database:
        yield database


@pytest.fixture(scope="module")
async def opened_fake() -> AsyncIterator[FakeOpenAI]:
    async with open_fake() as opened:
        opened.dimensions = DIMENSIONS
        yield opened


@pytest.fixture(scope="module")
async def opened_pair(
    own: TestDatabase, opened_fake: FakeOpenAI, tmp_path_factory: Any
) -> AsyncIterator[tuple[Service, Service]]:
    folder = tmp_path_factory.mktemp
    async with (
        open_service(own, folder("one"), **both(opened_fake)) as one,
        open_service(own, folder("two"), **both(opened_fake)) as two,
    ):
        yield one, two
        for service in (one, two):
            service.contract.write_seen(Path(os.environ["TURNKEEP_TEST_FOLDER"]))


@pytest.fixture
async def fake(opened_fake: FakeOpenAI) -> FakeOpenAI:
    opened_fake.mode, opened_fake.refused_word, opened_fake.delay_s = "ok", None, 0.0
    opened_fake.modes.clear()
    opened_fake.requests.clear()
    return opened_fake


@pytest.fixture
async def pair(
    opened_pair: tuple[Service, Service], fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> tuple[Service, Service]:
    """Two replicas of an installation that has never been moved, with nothing in it."""
    del fake
    monkeypatch.setattr(administration, "_DROP_AFTER_S", 0.0)
    await rows(opened_pair[0], "truncate tenants, jobs, searched_space cascade")
    await rows(opened_pair[0], "update embedding_spaces set state = 'idle', base_url = null")
    for service in opened_pair:
        await service.container.index.spaces.follow()
        for runtime in service.container.index.spaces.runtimes.values():
            runtime.ann._counts.clear()  # noqa: SLF001
    return opened_pair


async def rows(service: Service, sql: str, *args: object) -> list[asyncpg.Record]:
    return await fetch_as_superuser(service.database, sql, *args)


@asynccontextmanager
async def operating(service: Service, *clients: Client) -> AsyncIterator[Client]:
    """An operator, of the first client's tenant or of one of its own."""
    tenant_id = clients[0].tenant_id if clients else (await service.new_tenant()).tenant_id
    key = await service.container.tenancy.create_key(tenant_id, name="operator", scopes=list(Scope))
    async with service.client(str(key)) as client:
        client.tenant_id, client.key = tenant_id, str(key)
        yield client


async def call(operator: Client, path: str = "", **body: Any) -> dict[str, Any]:
    answer = await operator.post(f"{SPACES}{path}", json=None if path == "/rollback" else body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(operator: Client) -> dict[str, dict[str, Any]]:
    data = (await operator.get(SPACES)).json()["data"]
    return {f"{space['provider']}/{space['model']}/{space['dimensions']}": space for space in data}


async def vectors(service: Service) -> dict[str, int]:
    sql = "select s.provider, count(*) as n from vectors v join embedding_spaces s on s.id = v.space_id group by 1"
    return {row["provider"]: row["n"] for row in await rows(service, sql)}


async def faults(service: Service, client: Client) -> list[str]:
    ops = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor-spaces"))
    await ops.open()
    try:
        check = DataCheck(ops, client.tenant_id)
        found = [fault.code async for some in check.conversations(limit=None) for fault in some]
        return found + [fault.code for fault in await check.references()]
    finally:
        await ops.close()


def texts(start: int, count: int) -> list[str]:
    return [f"the {ANIMALS[n % 8]} number {n} likes place {n // 8}" for n in range(start, start + count)]


@asynccontextmanager
async def stored(service: Service, count: int) -> AsyncIterator[tuple[Client, str]]:
    async with await service.new_tenant() as client:
        conversation = await client.conversation(compaction={"strategy": "never"})
        for start in range(0, count, 32):  # an append makes so many vectors before it answers
            await client.append(conversation, *texts(start, min(32, count - start)))
        yield client, conversation


class Load:
    """Recalls without a pause on all replicas, and appends; counts what fails and what falls short of k."""

    def __init__(self, services: tuple[Service, ...], client: Client, conversation: str, *, k: int = 10) -> None:
        self.wrong: list[str] = []
        self.spaces: list[Counter[str]] = [Counter() for _ in services]
        self.appended = 0
        self._clients = [service.client(client.key) for service in services]
        self._conversation, self._k = conversation, k
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def __aenter__(self) -> Self:
        works = [self._recall(n, mode) for n in range(len(self._clients)) for mode in ("hybrid", "vector")]
        self._tasks = [asyncio.create_task(work) for work in (*works, self._append())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended = True  # what is under way ends
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            await client.aclose()

    async def _recall(self, number: int, mode: str) -> None:
        asked = 0
        while not self._ended:
            asked += 1
            body = {"query": f"which {ANIMALS[asked % 8]} likes place 3", "mode": mode, "k": self._k}
            scope = f"/v1/conversations/{self._conversation}/recall" if asked % 2 else "/v1/recall"
            answer = await self._clients[number].post(scope, json=body)
            if answer.status_code != 200 or len(answer.json()["data"]) != self._k:
                self.wrong.append(answer.text)
            else:
                self.spaces[number][answer.json()["space"]] += 1
            await asyncio.sleep(0.005)

    async def _append(self) -> None:
        while not self._ended:
            client = self._clients[self.appended % len(self._clients)]
            turns = {"turns": [{"role": "user", "content": f"an owl that came as number {self.appended}"}]}
            answer = await client.post(f"/v1/conversations/{self._conversation}/turns", json=turns)
            if answer.status_code != 201:
                self.wrong.append(answer.text)
            self.appended += 1
            await asyncio.sleep(0.03)

    async def all_in(self, space: str) -> None:
        """Wait until every replica answers from this space alone."""
        async with asyncio.timeout(60):
            while True:
                for counter in self.spaces:
                    counter.clear()
                await asyncio.sleep(0.3)
                if all(set(counter) == {space} for counter in self.spaces):
                    return


# the whole move


@pytest.mark.slow
async def test_an_installation_moves_back_and_forth_under_load_and_no_recall_fails(
    pair: tuple[Service, Service], fake: FakeOpenAI
) -> None:
    one, two = pair
    async with stored(one, 200) as (client, talk), operating(one, client) as operator:
        assert (await vectors(one)) == {"local": 200}
        before = await listed(operator)
        assert (before[OLD]["state"], before[OLD]["share"], before[OLD]["configured"]) == ("searched", 1.0, True)
        assert (before[NEW]["state"], before[NEW]["covered"], before[NEW]["configured"]) == ("idle", 0, True)
        async with Load(pair, client, talk) as load:
            added = await call(operator)
            assert (added["state"], added["base_url"]) == ("preparing", fake.url)
            assert added["dimensions"] == DIMENSIONS
            # appends go on meanwhile, and what they leave to do is done by either replica
            async with working(make_worker(one.container)), working(make_worker(two.container)):
                while (space := (await listed(operator))[NEW])["share"] < 0.95:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.1)
            assert (space["state"], space["exact"], space["searched_here"]) == ("preparing", True, False)
            compared = await call(operator, f"/{space['id']}/compare", queries=["a parrot", "place 3"], k=5)
            assert (compared["searched"], compared["compared"]) == (OLD, NEW)
            assert [len(query["compared"]) for query in compared["queries"]] == [5, 5]
            assert 0 <= compared["rank_agreement"] <= 1
            assert (await call(operator, f"/{space['id']}/switch"))["state"] == "searched"
            await load.all_in(NEW)
            back = await call(operator, "/rollback")
            assert (back["provider"], back["state"]) == ("local", "searched")
            await load.all_in(OLD)
            await call(operator, f"/{space['id']}/switch")
            await load.all_in(NEW)
        assert load.wrong == []
        assert load.appended > 10
        await one.run_jobs()
        total = 200 + load.appended
        # kept up to date for the way back, whichever was searched when
        assert await vectors(one) == {"local": total, "openai": total}
        after = await listed(operator)
        assert (after[OLD]["state"], after[OLD]["previous"], after[OLD]["share"]) == ("kept", True, 1.0)
        assert (after[NEW]["state"], after[NEW]["share"], after[NEW]["jobs_waiting"]) == ("searched", 1.0, 0)
        assert await faults(one, client) == []


@pytest.mark.slow
async def test_a_replica_learns_of_a_switch_by_the_bus_before_its_periodic_check(
    pair: tuple[Service, Service], own: TestDatabase, fake: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    monkeypatch.setattr(spaces, "_FOLLOW_S", 60.0)
    async with (
        stored(one, 3) as (client, _),
        operating(one, client) as operator,
        open_service(own, tmp_path, **both(fake)) as third,
    ):
        new = (await call(operator))["id"]
        await one.run_jobs()
        await call(operator, f"/{new}/switch")
        async with asyncio.timeout(60):
            while third.container.index.spaces.current.name != NEW:  # noqa: ASYNC110 - the bus tells it
                await asyncio.sleep(0.01)


async def test_a_search_that_began_in_one_space_ends_in_it(pair: tuple[Service, Service]) -> None:
    one, _ = pair
    async with stored(one, 20) as (client, talk), operating(one, client) as operator:
        new = (await call(operator))["id"]
        await one.run_jobs()
        embedder = one.container.embedder
        assert embedder is not None
        embed = embedder.embed

        async def switching(asked: Any, *, purpose: Any) -> Any:
            made = await embed(asked, purpose=purpose)
            if purpose == "query":
                await call(operator, f"/{new}/switch")
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedder, "embed", switching)
            answer = (await client.post(f"/v1/conversations/{talk}/recall", json={"query": "parrot", "k": 5})).json()
        assert (answer["space"], answer["degraded"], len(answer["data"])) == (OLD, [], 5)
        answer = (await client.post(f"/v1/conversations/{talk}/recall", json={"query": "parrot", "k": 5})).json()
        assert (answer["space"], answer["degraded"], len(answer["data"])) == (NEW, [], 5)


async def test_without_a_move_nothing_costs_more_and_during_one_an_append_costs_one_insert(
    pair: tuple[Service, Service],
) -> None:
    one, _ = pair
    # with what was appended since the last one
    recalled = ["begin", "select", "select", "select", "begin", "select"]
    async with stored(one, 2) as (client, talk), operating(one, client) as operator:
        for due in ([], ["insert into jobs"]):
            for _ in range(2):
                await client.append(talk, "warm")
                await client.recall(talk, "parrot")
            with counted_statements() as sent:
                await client.append(talk, "one more")
            assert first_words(sent) == [
                "begin", "select", "insert into turns", "insert into index_entries", "insert into vectors", *due,
                "update conversation_heads set", "insert into audit_unsealed; commit",
            ]  # fmt: skip
            with counted_statements() as sent:
                await client.recall(talk, "parrot")
            assert first_words(sent) == recalled
            await call(operator)


# what goes wrong meanwhile


def environment(service: Service, fake: FakeOpenAI, folder: Path, **more: str) -> dict[str, str]:
    given = both(fake) | {"database_url": service.database.app, "ops_database_url": service.database.ops,
        "owner_database_url": service.database.owner, "data_dir": folder, "migrate_on_start": "false",
        "job_lease_s": 1} | more  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    return kept | {f"TURNKEEP_{name.upper()}": str(value) for name, value in given.items()}


@pytest.mark.slow
async def test_a_worker_killed_while_it_fills_is_followed_by_one_that_goes_on(
    pair: tuple[Service, Service], fake: FakeOpenAI, tmp_path: Path
) -> None:
    one, _ = pair
    async with stored(one, 300) as (client, _), operating(one, client) as operator:
        await call(operator)
        fake.delay_s = 0.1
        worker = subprocess.Popen(  # noqa: ASYNC220 - it only starts, and is killed
            [*TURNKEEP, "worker"], cwd=ROOT, env=environment(one, fake, tmp_path),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(100):
                while (await vectors(one)).get("openai", 0) < 64:  # noqa: ASYNC110 - another process does it
                    await asyncio.sleep(0.02)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        made = (await vectors(one))["openai"]
        assert 64 <= made < 300
        fake.delay_s = 0.0
        async with asyncio.timeout(30):
            while (await listed(operator))[NEW]["covered"] < 300:
                await one.run_jobs()
                await asyncio.sleep(0.1)  # the lease of the dead runs out
        assert await vectors(one) == {"local": 300, "openai": 300}
        asked = Counter(text for request in fake.requests for text in request["input"])
        again = [text for text, count in asked.items() if count > 1 and text not in {"start", "probe"}]
        assert len(again) <= 32, "only the batch that was under way is made again"
        assert await faults(one, client) == []


@pytest.mark.slow
async def test_an_endpoint_that_fails_meanwhile_costs_time_and_nothing_else(
    pair: tuple[Service, Service], fake: FakeOpenAI
) -> None:
    one, _ = pair
    async with stored(one, 120) as (client, talk), operating(one, client) as operator:
        fake.modes, fake.mode = ["ok", "ok"], "overloaded"
        new = (await call(operator))["id"]
        await one.run_jobs()
        space = (await listed(operator))[NEW]
        assert 0 < space["covered"] < 120
        turns = (await client.append(talk, "said while the endpoint is away"))["turns"]
        assert turns[0]["index_state"] == "indexed"
        assert len(await client.recall(talk, "a parrot", k=10)) == 10
        problem(await operator.post(f"{SPACES}/{new}/switch", json={}), 409, "space_incomplete")
        compared = await operator.post(f"{SPACES}/{new}/compare", json={"queries": ["x"], "mode": "vector"})
        problem(compared, 503, "embedder_overloaded")
        fake.mode = "ok"
        async with asyncio.timeout(60):
            while (await listed(operator))[NEW]["covered"] < 121:
                await one.run_jobs()
                await asyncio.sleep(0.02)
        assert (await call(operator, f"/{new}/switch"))["state"] == "searched"
        # and away again, after the switch: words find it, as ever, and the way back is open
        fake.mode = "error"
        answer = (await client.post(f"/v1/conversations/{talk}/recall", json={"query": "parrot", "k": 5})).json()
        assert (answer["degraded"], len(answer["data"])) == (["embedder_unavailable"], 5)
        await call(operator, "/rollback")
        answer = (await client.post(f"/v1/conversations/{talk}/recall", json={"query": "parrot", "k": 5})).json()
        assert (answer["degraded"], answer["space"]) == ([], OLD)


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("rate_limited", "embedder_rate_limited"),
        ("error", "embedder_unavailable"),
        ("timeout", "embedder_unavailable"),
        ("html", "embedder_invalid"),
        ("wrong_dimensions", "embedder_invalid"),
        ("nan", "embedder_invalid"),
    ],
)
@pytest.mark.slow
async def test_jobs_of_an_endpoint_that_never_works_wait_or_park_with_the_reason_and_nothing_is_switched(
    pair: tuple[Service, Service], fake: FakeOpenAI, own: TestDatabase, tmp_path: Path, mode: Any, code: str
) -> None:
    del pair
    impatient = both(fake, embeddings_timeout_s=0.5 if mode == "timeout" else PATIENT_S, job_max_attempts=2)
    async with (
        open_service(own, tmp_path, **impatient) as service,
        stored(service, 12) as (client, talk),
        operating(service, client) as operator,
    ):
        fake.mode = mode
        new = (await call(operator))["id"]
        async with asyncio.timeout(60):
            while not (space := (await listed(operator))[NEW])["jobs_error"]:
                await service.run_jobs()
        assert (space["state"], space["covered"], space["jobs_error"]) == ("preparing", 0, code)
        # what is appended meanwhile has a job of its own there, which is given up in the end
        await client.append(talk, "said meanwhile")
        async with asyncio.timeout(60):
            while (await listed(operator))[NEW]["jobs_parked"] == 0:
                await service.run_jobs()
                await asyncio.sleep(0.02)
        parked = await rows(service, "select kind, last_error from jobs where state = 'parked' and kind like '%new_%'")
        assert [tuple(row) for row in parked] == [(f"index.backfill_new_{new}", code)]
        problem(await operator.post(f"{SPACES}/{new}/switch", json={}), 409, "space_incomplete")
        assert (await client.post("/v1/recall", json={"query": "parrot"})).json()["space"] == OLD
        assert await vectors(service) == {"local": 13}
        # and goes on when it works again
        fake.mode = "ok"
        async with asyncio.timeout(60):
            while (await listed(operator))[NEW]["covered"] < 13:
                await rows(service, "update jobs set run_at = now()")
                await service.run_jobs()
        assert (await call(operator, f"/{new}/switch"))["state"] == "searched"


async def test_a_space_that_lacks_anything_is_switched_to_by_force_only_and_rolled_back_to_likewise(
    pair: tuple[Service, Service], fake: FakeOpenAI
) -> None:
    one, _ = pair
    async with stored(one, 5) as (client, talk), operating(one, client) as operator:
        new = (await call(operator))["id"]
        problem(await operator.post(f"{SPACES}/{new}/switch", json={}), 409, "space_incomplete")
        await one.run_jobs()
        # what was appended a moment ago has its job under way, and keeps nobody waiting
        await client.append(talk, "just now")
        assert (await call(operator, f"/{new}/switch"))["state"] == "searched"
        await call(operator, "/rollback")
        # but one whose job has failed does
        await one.run_jobs()
        fake.mode = "error"
        await client.append(talk, "and one more")
        await one.run_jobs()
        problem(await operator.post(f"{SPACES}/{new}/switch", json={}), 409, "space_incomplete")
        problem(await operator.post(f"{SPACES}/rollback"), 409, "space_incomplete")
        assert (await listed(operator))[OLD]["state"] == "searched"
        forced = await call(operator, f"/{new}/switch", force=True)
        assert (forced["state"], forced["covered"], forced["entries"]) == ("searched", 6, 7)
        assert (await call(operator, "/rollback"))["provider"] == "local"


@pytest.mark.slow
async def test_a_process_with_settings_for_the_old_space_only_goes_on_in_it_and_says_so(
    pair: tuple[Service, Service], own: TestDatabase, tmp_path: Path
) -> None:
    one, _ = pair
    async with stored(one, 20) as (client, talk), operating(one, client) as operator:
        new = (await call(operator))["id"]
        await one.run_jobs()
        await call(operator, f"/{new}/switch")
        async with open_service(own, tmp_path) as old, old.client(client.key) as caller:
            answer = (await caller.post(f"/v1/conversations/{talk}/recall", json={"query": "parrot", "k": 5})).json()
            assert (answer["space"], answer["degraded"], len(answer["data"])) == (OLD, [], 5)
            assert old.container.index.spaces.cannot_embed_for_chosen
            await caller.append(talk, "a turn that only the old model knows")
            checks = {check.name: check for check in await examine(one_port(old), environment={})}
            assert checks["embedding space"].level is Level.FAIL
            assert NEW in checks["embedding space"].found
            assert "TURNKEEP_NEXT_EMBEDDER" in checks["embedding space"].remedy
        checks = {check.name: check for check in await examine(one_port(one), environment={})}
        assert checks["embedding space"].level is Level.OK
        await rows(one, "update jobs set run_at = now()")
        await one.run_jobs()
        assert await vectors(one) == {"local": 21, "openai": 21}


def one_port(service: Service) -> Any:
    return service.settings.model_copy(update={"server": ServerSettings(port=0)})


# taking one away


@pytest.mark.slow
async def test_what_is_dropped_leaves_no_vector_and_no_index_and_can_be_added_again(
    pair: tuple[Service, Service],
) -> None:
    one, two = pair
    async with stored(one, 60) as (client, talk), operating(one, client) as operator:
        old = (await listed(operator))[OLD]["id"]
        new = (await call(operator))["id"]
        problem(await operator.delete(f"{SPACES}/{old}"), 409, "space_searched")
        await one.run_jobs()
        assert await one.container.server.ensure_vector_index(space_id=new, dimensions=DIMENSIONS)
        assert (await listed(operator))[NEW]["index_ready"]
        dropped = await operator.delete(f"{SPACES}/{new}")
        assert (dropped.status_code, dropped.json()["state"]) == (202, "dropping")
        problem(await operator.post(SPACES, json={}), 409, "space_dropping")
        problem(await operator.post(f"{SPACES}/{new}/switch", json={"force": True}), 409, "space_dropping")
        await two.run_jobs()
        space = (await listed(operator))[NEW]
        assert (space["state"], space["vectors"], space["index_ready"]) == ("idle", 0, False)
        assert await vectors(one) == {"local": 60}
        assert await rows(one, "select from pg_class where relname = $1", vector_index_name(new)) == []
        await client.append(talk, "nothing of this goes there")
        await one.run_jobs()
        assert await vectors(one) == {"local": 61}
        # once more, and all the way: then it is the old one that goes
        await call(operator)
        await rows(one, "update jobs set run_at = now()")
        await one.run_jobs()
        assert await vectors(one) == {"local": 61, "openai": 61}
        await call(operator, f"/{new}/switch")
        assert (await operator.delete(f"{SPACES}/{old}")).status_code == 202
        await one.run_jobs()
        assert await vectors(one) == {"openai": 61}
        problem(await operator.post(f"{SPACES}/rollback"), 409, "space_no_previous")
        assert len(await client.recall(talk, "a parrot", mode="vector", k=10)) == 10
        assert await faults(one, client) == []


async def test_a_drop_that_is_interrupted_goes_on_where_it_was(
    pair: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    monkeypatch.setattr(administration, "_DROP_AT_ONCE", 7)
    monkeypatch.setattr(administration, "_DROP_FOR_S", -1.0)  # a job for every step
    async with stored(one, 60) as (client, _), operating(one, client) as operator:
        new = (await call(operator))["id"]
        await one.run_jobs()
        assert (await vectors(one))["openai"] == 60
        await operator.delete(f"{SPACES}/{new}")
        await one.run_jobs()
        assert await vectors(one) == {"local": 60}
        assert (await listed(operator))[NEW]["state"] == "idle"


# tenants that are wide


@pytest.mark.slow
async def test_a_wide_tenant_has_its_vector_index_before_the_switch(
    pair: tuple[Service, Service], own: TestDatabase, fake: FakeOpenAI, tmp_path: Path
) -> None:
    wide = both(fake, exact_scope_entries=60, recall_pool=20, text_candidates=100, resident_index_mb=0)
    async with (
        open_service(own, tmp_path, **wide) as service,
        stored(service, 150) as (client, _),
        operating(service, client) as operator,
    ):
        new = (await call(operator))["id"]
        runtime = service.container.index.spaces.runtimes[new]
        await service.run_jobs()
        assert await service.container.index.spaces.plan(runtime) == 0
        async with asyncio.timeout(60):
            while not (await listed(operator))[NEW]["index_ready"]:  # noqa: ASYNC110 - a task in the background
                await asyncio.sleep(0.05)
        (row,) = await rows(service, "select count(*) as n from vectors where space_id = $1 and tiered", new)
        assert row["n"] == 150
        await call(operator, f"/{new}/switch")
        async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
            assert (await runtime.ann.read_counts(tx, client.tenant_id)).can_use_index
        for mode in ("vector", "hybrid"):
            assert len(await client.recall(None, "a parrot of place 3", mode=mode, k=40)) == 40
    await rows(pair[0], "drop index " + vector_index_name(new))


# what else is found


@pytest.mark.slow
async def test_summaries_get_their_vectors_in_the_new_space_too(
    pair: tuple[Service, Service], own: TestDatabase, fake: FakeOpenAI, tmp_path: Path
) -> None:
    del pair
    of_summaries = """select count(*) as n from vectors v
        join index_entries e on e.tenant_id = v.tenant_id and e.entry_id = v.entry_id
        join embedding_spaces s on s.id = v.space_id where e.kind = 'summary' and s.provider = $1"""
    async with open_fake_chat() as chat:
        chat.reply = says(json.dumps({"summary": "They spoke of parrots at length.", "abstract": "Parrots."}))
        talkative = both(fake, llm_model=CHAT_MODEL, llm_base_url=chat.url)
        async with (
            open_service(own, tmp_path, **talkative) as service,
            stored(service, 30) as (client, talk),
            operating(service, client) as operator,
        ):
            body = {"strategy": "rolling", "trigger_turns": 10}
            answer = await client.post(f"/v1/conversations/{talk}/compact", json=body)
            assert answer.status_code == 200, answer.text
            assert (await rows(service, of_summaries, "local"))[0]["n"] == 1
            await call(operator)
            await service.run_jobs()
            assert (await rows(service, of_summaries, "openai"))[0]["n"] == 1
            # and one that is made meanwhile
            await client.append(talk, *texts(30, 30))
            assert (await client.post(f"/v1/conversations/{talk}/compact", json=body)).status_code == 200
            await service.run_jobs()
            made = [(await rows(service, of_summaries, provider))[0]["n"] for provider in ("local", "openai")]
            assert made[0] == made[1] > 0
            space = (await listed(operator))[NEW]
            assert (space["share"], space["jobs_waiting"], space["jobs_parked"]) == (1.0, 0, 0)


@pytest.mark.slow
async def test_a_summary_restored_after_a_space_was_filled_gets_its_vectors_there(
    pair: tuple[Service, Service], own: TestDatabase, fake: FakeOpenAI, tmp_path: Path
) -> None:
    del pair
    async with open_fake_chat() as chat:
        chat.reply = says(json.dumps({"summary": "They spoke of parrots at length.", "abstract": "Parrots."}))
        talkative = both(fake, llm_model=CHAT_MODEL, llm_base_url=chat.url)
        async with (
            open_service(own, tmp_path, **talkative) as service,
            stored(service, 30) as (client, talk),
            operating(service, client) as operator,
        ):
            body = {"strategy": "rolling", "trigger_turns": 10}
            for _ in range(2):  # the second summary stands in the place of the first, which nobody finds
                assert (await client.post(f"/v1/conversations/{talk}/compact", json=body)).status_code == 200
                await client.append(talk, *texts(30, 30))
            await call(operator)
            await service.run_jobs()
            assert (await listed(operator))[NEW]["share"] == 1.0
            assert (await client.post(f"/v1/conversations/{talk}/compact/undo")).status_code == 200
            lacking = """select count(*) as n from index_entries e where live and not exists (
                select from vectors v join embedding_spaces s on s.id = v.space_id
                where v.entry_id = e.entry_id and s.provider = 'openai')"""
            assert (await rows(service, lacking))[0]["n"] == 1
            # it has a job of its own: nobody has to look for it
            await rows(service, "update jobs set run_at = now() + interval '1 hour' where kind like '%plan%'")
            await service.run_jobs()
            assert (await rows(service, lacking))[0]["n"] == 0


OF_KIND = """select s.provider, count(distinct v.entry_id) as n from vectors v
    join index_entries e on e.tenant_id = v.tenant_id and e.entry_id = v.entry_id
    join embedding_spaces s on s.id = v.space_id where e.kind = $1 group by 1"""


async def of_kind(service: Service, kind: str) -> dict[str, int]:
    return {row["provider"]: row["n"] for row in await rows(service, OF_KIND, kind)}


async def test_memories_get_their_vectors_in_the_new_space_and_are_searched_in_it(
    pair: tuple[Service, Service],
) -> None:
    one, two = pair

    async def remember(client: Client, content: str, **more: Any) -> None:
        stored_one = await client.post("/v1/memories", json={"content": content} | more)
        assert stored_one.status_code == 201, stored_one.text

    async with stored(one, 3) as (client, _), operating(one, client) as operator:
        for number in range(3):
            await remember(client, f"they prefer tea of kind {number}")
        new = (await call(operator))["id"]
        await two.container.index.spaces.follow()
        await remember(client, "they have a parrot that sings")
        await two.run_jobs()
        assert await of_kind(one, "memory") == {"local": 4, "openai": 4}
        assert (await listed(operator))[NEW]["share"] == 1.0
        await call(operator, f"/{new}/switch")
        await remember(client, "they play the cello")
        query = {"query": "a parrot that sings", "kinds": ["memory"], "mode": "vector", "agent_id": "default", "k": 5}
        answer = (await client.post("/v1/recall", json=query)).json()
        assert (answer["space"], answer["degraded"], len(answer["data"])) == (NEW, [], 5)
        assert "parrot" in answer["data"][0]["text"]
        await one.run_jobs()
        # and those of the old one are kept up to date
        assert await of_kind(one, "memory") == {"local": 5, "openai": 5}


async def test_what_is_erased_leaves_no_vector_in_any_space(pair: tuple[Service, Service]) -> None:
    one, _ = pair
    async with stored(one, 12) as (client, talk), operating(one, client) as operator:
        memory = await client.post("/v1/memories", json={"content": "they like parrots"})
        await call(operator)
        await one.run_jobs()
        assert await vectors(one) == {"local": 13, "openai": 13}
        first = (await client.history(talk))[0]["id"]
        assert (await client.delete(f"/v1/conversations/{talk}/turns/{first}")).status_code == 204
        assert await vectors(one) == {"local": 12, "openai": 12}
        memory_id = (await client.get("/v1/memories")).json()["data"][0]["id"]
        assert (memory.status_code, (await operator.delete(f"/v1/memories/{memory_id}")).status_code) == (201, 204)
        assert await vectors(one) == {"local": 11, "openai": 11}
        assert (await client.delete(f"/v1/conversations/{talk}")).status_code == 204
        await rows(one, "update jobs set run_at = now()")
        await one.run_jobs()
        assert await vectors(one) == {}


async def test_what_is_erased_while_its_vectors_are_made_gets_none(
    pair: tuple[Service, Service], fake: FakeOpenAI
) -> None:
    one, two = pair
    async with stored(one, 6) as (client, talk), operating(one, client) as operator:
        await call(operator)
        fake.delay_s = 0.3
        filling = asyncio.create_task(two.run_jobs())
        async with asyncio.timeout(60):
            while not any("parrot" in str(request["input"]) for request in fake.requests):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        first = (await client.history(talk))[0]["id"]
        assert (await client.delete(f"/v1/conversations/{talk}/turns/{first}")).status_code == 204
        await filling
        assert await vectors(one) == {"local": 5, "openai": 5}


async def test_a_fork_made_while_a_space_is_filled_lacks_nothing_in_it(pair: tuple[Service, Service]) -> None:
    one, _ = pair
    async with stored(one, 10) as (client, talk), operating(one, client) as operator:
        new = (await call(operator))["id"]
        forked = await client.post(f"/v1/conversations/{talk}/fork", json={})
        assert forked.status_code == 201, forked.text
        copies = {turn["id"] for turn in await client.history(forked.json()["id"])}
        # nobody has to look for them: the filling may have gone by
        sql = "select unnest(subject_ids) as id from jobs where kind = $1"
        assert {format_id(row["id"]) for row in await rows(one, sql, f"index.backfill_new_{new}")} == copies
        await one.run_jobs()
        assert await vectors(one) == {"local": 20, "openai": 20}


async def test_spaces_are_of_the_installation_and_what_is_compared_of_the_tenant(
    pair: tuple[Service, Service],
) -> None:
    one, _ = pair
    async with (
        stored(one, 8) as (client, talk),
        stored(one, 8) as (_other, foreign),
        operating(one, client) as operator,
    ):
        new = (await call(operator))["id"]
        await one.run_jobs()
        own_ids = {turn["id"] for turn in await client.history(talk)}
        compared = await call(operator, f"/{new}/compare", queries=["a parrot"], k=20)
        (query,) = compared["queries"]
        assert {hit["id"] for hit in query["searched"] + query["compared"]} <= own_ids
        body = {"queries": ["x"], "conversation_id": foreign}
        problem(await operator.post(f"{SPACES}/{new}/compare", json=body), 404, "not_found")


# who may, and what is refused


async def test_only_an_operator_reaches_spaces_and_what_cannot_be_is_refused(
    pair: tuple[Service, Service], own: TestDatabase, tmp_path: Path
) -> None:
    one, _ = pair
    async with stored(one, 3) as (client, _):
        for method, path in (("GET", ""), ("POST", ""), ("POST", "/rollback"), ("POST", "/1/switch"), ("DELETE", "/1")):
            problem(await client.request(method, f"{SPACES}{path}", json={}), 403, "forbidden")
        async with operating(one, client) as operator:
            for path in ("/999/switch", "/999/compare"):
                body = {"queries": ["x"]} if path.endswith("compare") else {}
                answer = await operator.post(f"{SPACES}{path}", json=body)
                assert answer.status_code in {404, 409}
            problem(await operator.delete(f"{SPACES}/999"), 404, "not_found")
            problem(await operator.delete(f"{SPACES}/x"), 422, "invalid_request", "/space_id")
            problem(await operator.post(f"{SPACES}/rollback"), 409, "space_no_previous")
            problem(await operator.post(SPACES, json={"model": "another"}), 409, "space_not_configured")
            first = (await listed(operator))[NEW]["id"]
            problem(await operator.post(f"{SPACES}/{first}/compare", json={"queries": []}), 422, "invalid_request")
            body = {"queries": ["x"], "conversation_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
            problem(await operator.post(f"{SPACES}/{first}/compare", json=body), 404, "not_found")
        async with open_service(own, tmp_path) as alone, operating(alone, client) as operator:
            problem(await operator.post(SPACES, json={}), 409, "space_not_configured")
            problem(await operator.post(f"{SPACES}/{first}/switch", json={"force": True}), 409, "space_not_configured")


# the command


@pytest.mark.slow
async def test_the_command_fills_compares_and_switches_and_goes_back_and_drops(
    pair: tuple[Service, Service], fake: FakeOpenAI, tmp_path: Path
) -> None:
    one, two = pair
    async with stored(one, 40) as (client, talk), operating(one, client) as operator:
        env = environment(one, fake, tmp_path, bootstrap_key=client.key)

        async def command(*args: str, code: int = 0) -> str:
            process = await asyncio.create_subprocess_exec(
                *TURNKEEP, "reembed", *args, cwd=ROOT, env=env | {"COLUMNS": "200"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await asyncio.wait_for(process.communicate(), 90)
            assert process.returncode == code, said.decode()
            return said.decode()

        assert "searched" in await command("--status")
        said = await command("--yes", "--query", "a parrot", "--query", "place 3")
        assert f"Searched now: {NEW}" in said
        assert "rank agreement" in said
        new = (await listed(operator))[NEW]
        assert (new["state"], new["share"]) == ("searched", 1.0)
        began = time.monotonic()
        while two.container.index.spaces.current.name != NEW:  # noqa: ASYNC110 - another process has told it
            await asyncio.sleep(0.02)
        assert time.monotonic() - began < 2
        assert "already" in await command("--yes", code=1)
        assert f"Searched again: {OLD}" in await command("--rollback")
        assert len(await client.recall(talk, "a parrot", mode="vector", k=10)) == 10
        assert "is searched" in await command("--drop", str((await listed(operator))[OLD]["id"]), code=1)
        assert "Dropped" in await command("--drop", str(new["id"]))
        assert await vectors(one) == {"local": 40}


@pytest.mark.slow
async def test_a_command_that_is_killed_goes_on_where_it_stopped_when_it_is_run_again(
    pair: tuple[Service, Service], fake: FakeOpenAI, tmp_path: Path
) -> None:
    one, _ = pair
    async with stored(one, 300) as (client, _talk), operating(one, client) as operator:
        env = environment(one, fake, tmp_path, bootstrap_key=client.key)
        args = [*TURNKEEP, "reembed", "--yes", "--query", "a parrot"]
        fake.delay_s = 0.1
        first = subprocess.Popen(args, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)  # noqa: ASYNC220 - it is killed
        try:
            async with asyncio.timeout(100):
                while (await vectors(one)).get("openai", 0) < 64:  # noqa: ASYNC110 - another process does it
                    await asyncio.sleep(0.02)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        made = (await vectors(one))["openai"]
        assert 64 <= made < 300
        assert (await listed(operator))[NEW]["state"] == "preparing"
        fake.requests.clear()
        second = await asyncio.create_subprocess_exec(
            *args, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(second.communicate(), 120)
        assert second.returncode == 0, said.decode()
        assert await vectors(one) == {"local": 300, "openai": 300}
        again = [text for request in fake.requests for text in request["input"] if text.startswith("the ")]
        assert len(again) <= 300 - made + 32, "only the batch that was under way is made again"
        space = (await listed(operator))[NEW]
        assert (space["state"], space["share"]) == ("searched", 1.0)
        assert await faults(one, client) == []
