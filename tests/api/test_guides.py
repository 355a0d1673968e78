"""Every shell, Python and JSON snippet of README and docs/ is run as printed, and gives the answers that are shown.

The snippets of a page run in their order, in one shell, as one tenant. On a page that links to the first calls of the
README, those run before: they set `URL`, `KEY` and `ID`. A variable that no snippet sets is an error. A JSON snippet is
the last answer of the snippet before it. In the cookbook, a text snippet is all that the snippet before it prints.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import FakeChat, Reply, calls, open_fake_chat, says
from tests.support.fake_openai import MODEL
from tests.support.live import serving
from tests.support.postgres import Servers, TestDatabase, own_database

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
AGENTS = ROOT / "docs/guides/agents.md"
SPACES = ROOT / "docs/guides/embedding-spaces.md"
LONG = {"agents.md", "audit.md", "embedding-spaces.md", "export-import.md", "live-chat.md", "mcp.md"}
TRANSFERS = ROOT / "docs/guides/export-import.md"
COOKBOOK = ROOT / "docs/cookbook"
MIGRATIONS = ROOT / "docs/migrate"
MOVES = {SPACES}
"""Pages that move a whole installation to another embedding model; each has a database of its own."""
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = {"sh", "bash"}
KINDS = SHELL | {"python", "json"}
SETTING = re.compile(r"(\s*#.*|(export )?(\w+=\S*\s*)+(#.*)?|)")
"""A line of a snippet that only sets variables."""
FIRST_CALLS = 3
"""Snippets of the README that other pages build on: `URL` and `KEY`, a conversation, turns in it."""

NEEDS_DOCKER = "needs Docker; tests/containers runs the commands of docker-compose.yml"
STARTS_MORE = "starts a server, builds or runs the tests; the targets are tested by what they start"
TAKES_HOURS = "measures for hours"
NOT_RUN = {
    ("README.md", "make run"): STARTS_MORE,
    ("README.md", "docker build -t turnkeep ."): NEEDS_DOCKER,
    (
        "docs/guides/capacity.md",
        ".venv/bin/python bench/growth.py scratch --turns 1000000 --tenants 1000 --out growth.md",
    ): TAKES_HOURS,
    ("docs/guides/openai.md", "make run"): STARTS_MORE,
    ("docs/guides/scaling-out.md", "cp .env.example .env     # and set both passwords in it"): NEEDS_DOCKER,
    ("docs/guides/deploying.md", "docker build -t turnkeep ."): NEEDS_DOCKER,
    ("docs/guides/deploying.md", "make wheels"): STARTS_MORE,
    ("docs/guides/deploying.md", "cp .env.example .env     # and set both passwords in it"): NEEDS_DOCKER,
    (
        "docs/guides/backup.md",
        "docker compose exec postgres pg_dump -U postgres --format=custom turnkeep > turnkeep.dump",
    ): NEEDS_DOCKER,
}
MARKS = {
    NEEDS_DOCKER: re.compile(r"^docker ", re.MULTILINE),
    STARTS_MORE: re.compile(r"\Amake (run|test|wheels)$", re.MULTILINE),
    TAKES_HOURS: re.compile(r" bench/growth\.py .*--turns 1000000\b"),
}
"""What a snippet that is not run for a reason must contain: the list cannot take in others."""

# `curl -sN` follows without end
PRELUDE = """set -euo pipefail
curl() { case "$1" in -sN) command curl -m 2 "$@" || test $? = 28 ;; *) command curl -m 60 "$@" ;; esac; }
"""


@dataclass(frozen=True)
class Snippet:
    language: str
    code: str

    @property
    def first_line(self) -> str:
        return self.code.partition("\n")[0]

    @property
    def is_settings(self) -> bool:
        """Whether it only sets variables, those of a server among them."""
        lines = self.code.splitlines()
        names = ("TURNKEEP_", "OPENAI_API_KEY=")
        return all(SETTING.fullmatch(line) for line in lines) and any(name in self.code for name in names)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def snippets(page: Path) -> list[Snippet]:
    """The snippets of a page that must work."""
    kinds = KINDS | {"text"} if page.parent == COOKBOOK else KINDS
    return [Snippet(language, code) for language, code in FENCE.findall(page.read_text()) if language in kinds]


def runnable(page: Path) -> list[Snippet]:
    return [snippet for snippet in snippets(page) if (name_of(page), snippet.first_line) not in NOT_RUN]


def is_long(page: Path) -> bool:
    """Whether the snippets of a page take a second or more."""
    return page.name in LONG or page.parent in {COOKBOOK, MIGRATIONS}


WITH_SNIPPETS = [page for page in PAGES if runnable(page)]


def script(page: Path, folder: Path, port: int, key: str) -> str:
    """All of a page as one shell script, which leaves what each snippet printed in a file with its number."""
    parts = [PRELUDE]
    if "README.md#first-calls)" in page.read_text():
        first = [snippet.code for snippet in snippets(README) if snippet.language == "bash"][:FIRST_CALLS]
        parts += ["{", *first, "} > /dev/null"]
    for number, snippet in enumerate(runnable(page)):
        code = snippet.code
        printed = f'> "{folder}/{number}.out"'
        if snippet.language == "python":
            (folder / f"{number}.py").write_text(at_port(code.replace("tk_…", key), port))
            parts.append(f'"{sys.executable}" "{folder}/{number}.py" {printed}')
        elif snippet.is_settings:
            # not for the rest of the page: they are those of a server that is started with them
            export, load = "set -a", f'"{sys.executable}" -c "from app.settings import Settings; Settings()"'
            parts.append(f'( {export}\n{code}\nPYTHONPATH="{ROOT}" {load} ) {printed}')
        elif snippet.language in SHELL:
            parts.append(f"{{\n{code}\n}} {printed}")
    return at_port("\n".join(parts), port)


def at_port(code: str, port: int) -> str:
    return code.replace("127.0.0.1:8765", f"127.0.0.1:{port}")


def answers(printed: str) -> Iterator[Any]:
    """The JSON texts in what was printed, one behind the other, with or without line breaks between them."""
    decoder, at = json.JSONDecoder(), 0
    while (found := re.search(r"[{\[]", printed[at:])) is not None:
        at += found.start()
        try:
            value, at = decoder.raw_decode(printed, at)
        except ValueError:
            at += 1
        else:
            yield value


ID = re.compile(r"[0-9A-Z]{26}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SHAPES = {ID: ID, re.compile(r"01[0-9A-Z]{2}…"): ID, TIME: TIME}
"""Ids and times as shown, and the form that the answer must have: others are given each time."""


def matches(answer: Any, shown: Any, place: str = "") -> None:
    """Fail unless an answer has what is shown of it. Shown objects may lack members; `…` stands for any text."""
    if isinstance(shown, dict):
        for name, value in shown.items():
            assert name in answer, f"{place}/{name}"
            matches(answer[name], value, f"{place}/{name}")
    elif isinstance(shown, list):
        assert len(answer) == len(shown), place
        for number, (one, other) in enumerate(zip(answer, shown, strict=True)):
            matches(one, other, f"{place}/{number}")
    elif isinstance(shown, str):
        forms = [form for shape, form in SHAPES.items() if shape.fullmatch(shown)]
        form = forms[0] if forms else re.compile(".*".join(map(re.escape, shown.split("…"))), re.DOTALL)
        assert form.fullmatch(answer), f"{place}: {answer}"
    else:
        assert answer == shown, place


def model(request: dict[str, Any]) -> Reply:
    """The chat model of the guides: looks for a memory where it has tools; writes a summary where JSON is wanted."""
    if "response_format" in request:
        return says({"summary": "Mia plans a week in Lisbon; no peanuts.", "abstract": "A week in Lisbon."})
    has_looked = any(message["role"] == "tool" for message in request["messages"])
    if "tools" in request and not has_looked:
        return calls(("recall_memory", {"query": "food"}))
    return says("Peanuts; you told me in March." if has_looked else "Hello, Ada.")


@pytest.fixture(scope="module")
async def endpoint() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as fake:
        fake.reply = model
        yield fake


@pytest.fixture(scope="module")
async def served(
    request: pytest.FixtureRequest,
    database: TestDatabase,
    servers: Servers,
    tmp_path_factory: pytest.TempPathFactory,
    endpoint: FakeChat,
) -> AsyncIterator[tuple[Service, int]]:
    """A server with a chat model, and with what a page needs besides.

    The internal agent takes the place of other tools, so it is there for its page alone.
    """
    settings: dict[str, Any] = {"llm_model": "gpt-5-mini", "llm_base_url": endpoint.url}
    if request.param == AGENTS:
        settings["enable_internal_agent"] = True
    elif request.param in MOVES:
        settings |= {
            "next_embedder": "openai",
            "next_embeddings_base_url": endpoint.url,
            "next_embeddings_model": MODEL,
        }
        settings["next_embeddings_dimensions"] = endpoint.dimensions = 1536
    folder = Path(tmp_path_factory.mktemp("guides"))
    async with (
        own_database(servers, "guides") if request.param in MOVES else nullcontext(database) as used,
        open_service(used, folder, **settings) as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield opened, port


def environment(service: Service, client: Client, port: int) -> dict[str, str]:
    """Where the commands of a page find the database and the server."""
    database, embedding = service.settings.database, service.settings.embedding
    urls = {name: str(getattr(database, name)) for name in ("database_url", "ops_database_url", "owner_database_url")}
    if embedding.next_embedder is not None:
        urls |= {name: str(value) for name, value in embedding if name.startswith("next_embed") and value}
    given = urls | {"bootstrap_key": client.key, "api_key": client.key, "url": f"http://127.0.0.1:{port}"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "OPENAI_"))}
    return kept | {f"TURNKEEP_{name.upper()}": value for name, value in given.items()} | {"NO_PROXY": "127.0.0.1"}


def run(commands: str, folder: Path, env: dict[str, str]) -> dict[int, str]:
    """What each snippet printed, by its number."""
    done = subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=env, input="y\n", capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    printed = {int(file.stem): file.read_text() for file in folder.glob("*.out")}
    assert done.returncode == 0, f"{printed.get(max(printed, default=-1))}\n{done.stderr}"
    return printed


@asynccontextmanager
async def working(service: Service) -> AsyncIterator[None]:
    """Do the jobs that come, as a worker beside the server does."""

    async def work() -> None:
        while True:
            await service.run_jobs()
            await asyncio.sleep(0.1)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("served", "page"),
    [
        pytest.param(page if page in {AGENTS, *MOVES} else None, page, marks=pytest.mark.slow if is_long(page) else ())
        for page in WITH_SNIPPETS
    ],
    ids=lambda value: name_of(value) if isinstance(value, Path) else "",
    indirect=["served"],
)
async def test_the_snippets_of_a_page_work_as_printed(served: tuple[Service, int], tmp_path: Path, page: Path) -> None:
    service, port = served
    client = await service.new_tenant()
    if page in MOVES:  # the call of an operator
        client.key = str(await service.container.tenancy.create_key(client.tenant_id, name="all", scopes=list(Scope)))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/admin-key").write_text(client.key)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    commands = script(page, tmp_path, port, client.key)
    has_operations = page == TRANSFERS or page.parent in {COOKBOOK, MIGRATIONS}
    async with working(service) if has_operations else nullcontext():  # their commands wait for operations
        printed = await asyncio.to_thread(run, commands, tmp_path, environment(service, client, port))
    await client.aclose()
    parts = runnable(page)
    for number, snippet in enumerate(parts):
        following = parts[number + 1] if number + 1 < len(parts) else None
        shown = json.loads(following.code) if following is not None and following.language == "json" else None
        if snippet.language in {"json", "text"}:
            assert parts[number - 1].language in SHELL | {"python"}, "it is what the snippet before it prints"
            continue
        if following is not None and following.language == "text":
            assert printed[number].strip() == following.code.strip()
        given = list(answers(printed[number]))
        if shown is not None:
            matches(given.pop(), json.loads(at_port(json.dumps(shown), port)))
        refused = [answer for answer in given if isinstance(answer, dict) and {"code", "request_id"} <= answer.keys()]
        assert refused == []


def test_the_list_of_what_is_not_run_is_no_longer_than_needed() -> None:
    known = {(name_of(page), snippet.first_line): snippet for page in PAGES for snippet in snippets(page)}
    for place, reason in NOT_RUN.items():
        assert place in known, "there is no such snippet any more"
        assert known[place].language in SHELL, place
        assert MARKS[reason].search(known[place].code), place


def test_commands_of_turnkeep_are_named_where_make_puts_them() -> None:
    for page in PAGES:
        for snippet in snippets(page):
            bare = re.findall(r"(?:^|\$\()turnkeep .*", snippet.code, re.MULTILINE)
            assert bare == [], f"{name_of(page)}: .venv/bin/turnkeep"
