"""A release on the schema of the next one: a rolling update, and the way back.

The next release is this one with one more migration. It must run beside release 0.1.0, and beside this one.
"""

import io
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from turnkeep_minilm import FOLDER, PINNED

from app.core.database import revisions, schema
from app.core.database.revisions import FIRST_RELEASE, SchemaVersion, head_revision
from app.core.errors import Unavailable
from app.tenancy.key_text import generate_key
from tests.support.api import open_service
from tests.support.postgres import TestDatabase
from tests.support.process import ROOT, Process, process_folder

COMMIT = "0cde612a635556cf127f89b932277dd99621e0f7"
"""Of the tag v0.1.0; a clone may have no tags."""
KEY = str(generate_key())
NEXT = "next"
MIGRATION = """
from alembic import op

revision = "{next}"
down_revision = "{head}"
branch_labels = depends_on = None
oldest_replica = {oldest!r}


def upgrade():
    op.execute("alter table turns add column weight integer not null default 1, add column note text")
    op.execute("create table notes (tenant_id uuid primary key)")


def downgrade():
    op.execute("drop table notes")
"""


@contextmanager
def next_release(folder: Path, *, oldest_replica: str | None = None) -> Iterator[None]:
    """As if this release had one more migration."""
    migration = MIGRATION.format(next=NEXT, head=head_revision(), oldest=oldest_replica)
    shutil.copytree(revisions.migrations_path(), folder)
    (folder / "versions/next.py").write_text(migration)
    with pytest.MonkeyPatch.context() as patch:
        for module in (revisions, schema):
            patch.setattr(module, "migrations_path", lambda: folder)
        yield


@pytest.fixture
def release_0_1_0(tmp_path: Path) -> Path:
    """The source of release 0.1.0, from the history of this checkout, with the model of this one."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed, so the code of release 0.1.0 is missing: apt install git")
    packed = subprocess.run([git, "archive", COMMIT, "app", "alembic"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip("the checkout has no code of release 0.1.0: git fetch --unshallow --tags")
    folder = tmp_path / "0.1.0"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for name in PINNED:
        (folder / "app/providers/assets" / name).symlink_to(FOLDER / name)
    return folder


@asynccontextmanager
async def process(folder: Path, url: str, code: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server in a process of its own, which logs no error."""
    server = Process(folder, code=code, database_url=url, bootstrap_key=KEY).start().wait()
    base = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        yield client
    _, said = server.stop()
    assert '"level": "error"' not in said, said


@asynccontextmanager
async def app(folder: Path, url: str, *, migrate: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """A client of this release, in the process of the test."""
    database = TestDatabase(superuser=url, owner=url, app=url, ops=url)
    async with (
        open_service(database, folder, migrate_on_start=migrate, bootstrap_key=KEY) as service,
        service.client(KEY) as client,
    ):
        yield client


class Release:
    """What a test does with a release that runs, by its client."""

    def __init__(self, client: httpx.AsyncClient, conversation: str) -> None:
        self._client, self._path = client, f"/v1/conversations/{conversation}"

    async def append(self, text: str, *, key: str | None = None) -> bool:
        """Append a turn; says whether the answer is that of an earlier request with this key."""
        body = {"turns": [{"role": "user", "content": text}]}
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await self._client.post(f"{self._path}/turns", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return "Idempotent-Replayed" in answer.headers

    async def stream(self, text: str) -> None:
        body = {"turn": {"role": "assistant", "actor": "bot"}, "writer": "w"}
        opened = await self._client.post(f"{self._path}/turns/open", json=body)
        assert opened.status_code == 201, opened.text
        turn = f"{self._path}/turns/{opened.json()['turn']['id']}"
        for path, more in ((f"{turn}/chunks", {"offset": 0, "delta": text}), (f"{turn}/commit", {"length": len(text)})):
            answer = await self._client.post(path, json=more)
            assert answer.status_code == 200, answer.text

    async def act(self, tool: str) -> None:
        """Let a tool act, so that it is among the participants."""
        call = {"role": "assistant", "content": "", "tool_calls": [{"id": tool, "name": "look", "arguments": "{}"}]}
        body = {"turns": [call, {"role": "tool", "actor": tool, "tool_call_id": tool, "content": f"{tool} acted"}]}
        answer = await self._client.post(f"{self._path}/turns", json=body)
        assert answer.status_code == 201, answer.text

    async def participants(self) -> dict[str, str | None]:
        """The participants, each with its role, after one that wrote was named."""
        answer = await self._client.patch(self._path, json={"participants": ["user"]})
        assert answer.status_code == 200, answer.text
        return {one["actor"]: one.get("role") for one in answer.json()["participants"]}

    async def history(self) -> list[str]:
        page = (await self._client.get(f"{self._path}/turns", params={"limit": 200})).json()
        return [turn["content"] for turn in sorted(page["data"], key=lambda turn: turn["position"])]

    async def best(self, query: str) -> str:
        found = (await self._client.post(f"{self._path}/recall", json={"query": query})).json()
        return found["data"][0]["turn"]["content"]

    async def serves(self, said: list[str]) -> None:
        """Fail unless it shows all that was said, and finds the first and the second."""
        assert await self.history() == said
        assert await self.best("Where does the quokka live?") == said[0]
        assert await self.best("Who digs burrows?") == said[1]
        context = await self._client.post(f"{self._path}/context", json={"token_budget": 2000})
        assert context.status_code == 200, context.text
        assert (await self._client.get(f"{self._path}/verify")).json()["valid"]


async def started(client: httpx.AsyncClient) -> str:
    """A conversation with a first turn."""
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    await Release(client, conversation).append("The quokka lives on Rottnest.")
    return conversation


async def mixed(
    conversation: str, old: AbstractAsyncContextManager[httpx.AsyncClient], new: httpx.AsyncClient
) -> list[str]:
    """Start the old release beside the new one, let both write, and both read; gives what was said."""
    second = Release(new, conversation)
    async with old as client:
        first = Release(client, conversation)
        for one, other in ((first, second), (second, first)):
            key = f"once, by {'the old one' if one is first else 'the new one'}"
            assert [await release.append(key, key=key) for release in (one, other)] == [False, True]
        await first.act("old tool")
        await second.act("new tool")
        for release in (first, second):
            assert "user" in await release.participants()
        assert (await second.participants())["new tool"] == "tool"
        await first.append("said to the old one")
        await second.append("said to the new one")
        await first.stream("streamed by the old one")
        await second.stream("streamed by the new one")
        said = await second.history()
        for release in (first, second):
            await release.serves(said)
    return said[-4:]


BOTH = ["said to the old one", "said to the new one", "streamed by the old one", "streamed by the new one"]


@pytest.mark.slow
async def test_release_0_1_0_goes_on_and_starts_again_on_the_schema_of_the_next_release(
    url: str, tmp_path: Path, release_0_1_0: Path
) -> None:
    with process_folder() as folder:
        async with process(folder, url, release_0_1_0) as old:
            conversation = await started(old)
            assert await schema.current_version(url) == SchemaVersion(FIRST_RELEASE, FIRST_RELEASE)
            with next_release(tmp_path / "next"):
                await schema.require_migratable(url, force=False)
                await schema.migrate(url)
            await Release(old, conversation).append("The wombat digs burrows.")
        with next_release(tmp_path / "again"):
            async with app(tmp_path / "data", url) as new:
                assert await mixed(conversation, process(folder, url, release_0_1_0), new) == BOTH
    assert await schema.current_version(url) == SchemaVersion(NEXT, FIRST_RELEASE), "the old one changed nothing"


@pytest.mark.parametrize("migrates", [True, False])
@pytest.mark.slow
async def test_this_release_serves_on_the_schema_of_the_next_release(
    url: str, tmp_path: Path, *, migrates: bool
) -> None:
    async with AsyncExitStack() as stack:
        with next_release(tmp_path / "next"):
            new = await stack.enter_async_context(app(tmp_path / "data", url))
        conversation = await started(new)
        await Release(new, conversation).append("The wombat digs burrows.")
        assert await mixed(conversation, app(tmp_path / "old", url, migrate=migrates), new) == BOTH
    assert await schema.current_version(url) == SchemaVersion(NEXT, FIRST_RELEASE), "the old one changed nothing"


@pytest.mark.slow
async def test_a_release_refuses_a_schema_without_what_it_needs(url: str, tmp_path: Path) -> None:
    with next_release(tmp_path / "next", oldest_replica=NEXT):
        async with app(tmp_path / "data", url):
            pass
    assert await schema.current_version(url) == SchemaVersion(NEXT, NEXT)
    for migrates in (True, False):
        with pytest.raises(Unavailable, match=f"newer release has brought this database to schema {NEXT}") as refused:
            async with app(tmp_path / "data", url, migrate=migrates):
                pass
        assert refused.value.code == "schema_newer"


@pytest.mark.slow
async def test_release_0_1_0_refuses_a_schema_without_what_it_needs(
    url: str, tmp_path: Path, release_0_1_0: Path
) -> None:
    await schema.migrate(url)
    with next_release(tmp_path / "next", oldest_replica=NEXT):
        await schema.migrate(url)
    with process_folder() as folder:
        refused = Process(folder, code=release_0_1_0, database_url=url).command("serve")
    assert refused.returncode == 1
    assert f"A newer release has brought this database to schema {NEXT}" in refused.stderr.splitlines()[-1]
