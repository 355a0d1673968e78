"""`turnkeep export` and `turnkeep import`: beside a server on a real socket, across lost connections and kills."""

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.cli.archives import download as downloads
from app.cli.archives import upload as uploads
from app.cli.archives.connection import RunningServer, TransportError
from app.cli.archives.download import ExportSelection, download
from app.cli.archives.progress import TransferProgress
from app.transfer.exports import conversations as conversation_export
from app.transfer.exports import service as exports
from tests.api.test_exports import CREATED_AT, export, records, stored
from tests.api.test_guides import working
from tests.api.test_import_odd_files import chat
from tests.api.test_imports import file_of, imported
from tests.imports.test_importers import sample
from tests.support.api import Client, Service, problem
from tests.support.command import TURNKEEP
from tests.support.live import serving


@pytest.fixture
async def url(service: Service) -> AsyncIterator[str]:
    async with serving(service.app, service.settings) as port:
        yield f"http://127.0.0.1:{port}"


async def command(url: str, client: Client, *words: str | Path) -> tuple[int, str, str]:
    environment = {"TURNKEEP_URL": url, "TURNKEEP_API_KEY": client.key, "PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        *TURNKEEP, *words, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    written, complained = await process.communicate()
    return await process.wait(), written.decode(), complained.decode()


@pytest.mark.slow
async def test_a_file_goes_from_one_tenant_to_another_and_back_with_equal_bytes(
    service: Service, client: Client, other: Client, url: str, tmp_path: Path
) -> None:
    await stored(client)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    code, _, complained = await command(url, client, "export", first, "--created-at", CREATED_AT)
    assert (code, names(tmp_path)) == (0, ["first.jsonl"]), complained
    assert first.read_bytes() == await export(client)
    async with working(service):
        code, written, complained = await command(url, other, "import", first)
    assert code == 0, complained
    assert "stored: conversation 1, turn 7," in written
    assert (await command(url, other, "export", second, "--created-at", CREATED_AT))[0] == 0
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.slow
async def test_the_file_of_another_system_is_converted_while_it_is_sent(
    service: Service, other: Client, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "memories.json"
    file.write_text(json.dumps(sample("mem0")))
    async with working(service):
        code, written, complained = await command(url, other, "import", file)
    assert (code, "memories.json is an export of mem0" in complained) == (0, True), complained
    stored_count = len((await other.get("/v1/memories", params={"limit": 100})).json()["data"])
    assert f"stored: memory {stored_count}\n" in written
    assert stored_count > 0
    async with working(service):
        code, written, complained = await command(url, other, "import", file, "--from", "mem0")
    assert (code, written) == (0, f"stored: nothing new\n{stored_count} records were there already\n"), complained


@pytest.mark.slow
async def test_an_import_with_one_odd_chat_stores_the_others_and_names_it(
    service: Service, client: Client, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "conversations.json"
    nameless = chat("odd")
    del nameless["mapping"]
    silent = chat("silent")
    del silent["mapping"]["b"]["message"]["author"]
    file.write_text(json.dumps([chat("good-1"), nameless, silent, chat("good-2", answer="a \x00 b")])[:-1])
    async with working(service):
        code, written, complained = await command(url, client, "import", file)
        again = await command(url, client, "import", file)
    assert (code, "stored: conversation 3, turn 5\n" in written) == (1, True), complained
    assert "not imported: 3\n" in complained
    assert "  conversation odd, line 10: /1/mapping: a value is expected\n" in complained
    assert "  turn b of conversation silent, line 11: /2/mapping/b/message/author: a value is expected\n" in complained
    assert "/4: the file ends inside of it" in complained
    assert "8 records were there already, with 3 conversations\n" in again[1]
    file.write_text(json.dumps([nameless]))
    async with working(service):
        code, _, complained = await command(url, client, "import", file, "--from", "chatgpt")
    assert (code, "/0/mapping: conversation odd: a value is expected" in complained) == (1, True), complained
    file.write_text('{"a": 1}')
    code, _, complained = await command(url, client, "import", file)
    assert (code, "name it with --from chatgpt, claude," in complained) == (1, True)


@pytest.mark.slow
async def test_refused_records_and_a_wrong_key_end_with_code_1(
    service: Service, client: Client, other: Client, url: str, tmp_path: Path
) -> None:
    await stored(client)
    found = records(await export(client))
    file = tmp_path / "file.jsonl"
    file.write_bytes(file_of([found[0], found[1] | {"seq": "one"}, *found[2:]]))
    async with working(service):
        code, written, complained = await command(url, other, "import", file, "--dry-run")
    assert (code, "would be stored" in written) == (1, True)
    assert "line 3: /seq: " in complained
    file.write_bytes(b"no export")
    code, _, complained = await command(url, other, "import", file)
    assert (code, complained.count("\n"), "file.jsonl is no export of Turnkeep" in complained) == (1, 1, True), (
        complained
    )
    file.write_bytes(b"")
    assert await command(url, other, "import", file) == (1, "", "turnkeep: file.jsonl is empty.\n")
    file.write_bytes(codecs.BOM_UTF8 + file_of(found))
    async with working(service):
        code, written, complained = await command(url, other, "import", file, "--dry-run")
    assert (code, "would be stored: conversation" in written) == (0, True), complained
    file.write_bytes(file_of(found))
    key, other.key = other.key, "tk_wrong"
    assert "[unauthenticated]" in (await command(url, other, "import", file))[2]
    other.key = key


def _no_sleep(seconds: float) -> None:
    assert seconds >= 0


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class KilledError(Exception):
    """Ends a download as a kill does: nothing is done after it."""


@pytest.mark.parametrize("fault", [KilledError, TransportError])
@pytest.mark.slow
async def test_a_download_continues_after_its_last_checkpoint(
    fault: type[Exception], client: Client, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in ("ana", "ben"):
        await stored(client, owner)
    whole = await export(client)
    monkeypatch.setattr(exports, "_PAGE_RECORDS", 2)
    monkeypatch.setattr(exports, "_CONVERSATIONS", 2)
    monkeypatch.setattr(conversation_export, "_TURNS", 2)
    monkeypatch.setattr(downloads.time, "sleep", _no_sleep)
    asked: list[str | None] = []
    lines_of = downloads._lines  # noqa: SLF001 - the place where connections are lost

    def cut(server: RunningServer, scope: ExportSelection, cursor: str | None) -> Iterator[bytes]:
        asked.append(cursor)
        for number, line in enumerate(lines_of(server, scope, cursor)):
            if number == 20:
                raise fault("gone")
            yield line

    monkeypatch.setattr(downloads, "_lines", cut)
    file, server, scope = (
        tmp_path / "file.jsonl",
        RunningServer(url, client.key),
        ExportSelection(created_at=CREATED_AT),
    )
    runs = 0
    while not file.exists():
        runs += 1
        assert runs < 20
        try:
            with TransferProgress("export") as progress:
                await asyncio.to_thread(download, server, scope, file, progress=progress)
        except KilledError:
            assert file.with_name("file.jsonl.part.json").exists()
            with file.with_name("file.jsonl.part").open("ab") as torn:
                torn.write(b'{"type":"tu')
    assert file.read_bytes() == whole
    assert len(asked) == len(set(asked)) > 2, "each run continued"
    assert (runs > 1) == (fault is KilledError)
    assert names(tmp_path) == ["file.jsonl"]


async def test_a_part_of_another_export_is_not_continued(client: Client, url: str, tmp_path: Path) -> None:
    note = {"cursor": "c", "size": 0, "records": 1, "source": {"url": url, "project": "x"}}
    (tmp_path / "file.jsonl.part.json").write_text(json.dumps(note))
    (tmp_path / "file.jsonl.part").write_bytes(b"")
    code, _, complained = await command(url, client, "export", tmp_path / "file.jsonl")
    assert (code, "is of another export" in complained) == (1, True), complained


@pytest.mark.slow
async def test_an_import_goes_on_while_the_server_restarts(
    service: Service, client: Client, other: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(client)
    operation = (await other.post("/v1/import", content=await export(client))).json()
    answers = iter([TransportError("gone"), TransportError("gone")])
    succeeds = uploads.require_success

    def lose(answer: object) -> None:
        if (lost := next(answers, None)) is not None:
            raise lost
        succeeds(answer)  # type: ignore[arg-type]

    monkeypatch.setattr(uploads, "require_success", lose)
    async with working(service):
        with TransferProgress("import") as progress:
            ended = await asyncio.to_thread(uploads.follow, RunningServer(url, other.key), operation, progress=progress)
    assert ended["status"] == "succeeded"
    assert uploads.show(ended)


async def test_an_upload_with_a_source_is_converted_by_the_server(service: Service, other: Client) -> None:
    document = json.dumps(sample("mem0")).encode()
    result = await imported(service, other, document, source="mem0")
    assert result["records"]["memory"] == len((await other.get("/v1/memories")).json()["data"]) > 0
    again = await imported(service, other, document, source="mem0")
    assert again["records"]["memory"] == 0
    for body, code in ((b'{"results": [{"memory": 7}]}', 422), (b"{", 400)):
        answer = await other.post("/v1/import", content=body, params={"source": "mem0"})
        assert answer.status_code == code, answer.text
    problem(await other.post("/v1/import", content=b"{}", params={"source": "nobody"}), 422, "invalid_request")
    problem(
        await other.post("/v1/import", content=b" " * (9 * 2**20), params={"source": "mem0"}), 413, "import_too_large"
    )
