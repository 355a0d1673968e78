"""Whole processes: the command line, start and stop, two of them on one data directory."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from app.core.database.revisions import head_revision, known_revisions
from tests.support.command import PLAIN, migrated_data
from tests.support.process import START_S, Process, process_folder, terminal


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data directory that is not there yet."""
    with process_folder() as made:
        yield made / "data"


@pytest.fixture
def data(folder: Path) -> Path:
    """A data directory with a database, where a first start need not make one."""
    migrated_data(folder)
    return folder


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Process, Process]]:
    """Two servers on one data directory, for the tests that only need some that run, and leave them running."""
    with process_folder() as made:
        migrated_data(made / "data")
        # their logs are not read while they run
        one, two = [Process(made / "data", log_level="error").start() for _ in range(2)]
        yield one.wait(), two.wait()
        one.stop()
        two.stop()


@pytest.mark.slow
def test_an_idle_connection_is_kept_for_longer_than_clients_keep_theirs(running: tuple[Process, Process]) -> None:
    connection = HTTPConnection("127.0.0.1", running[0].port)
    connection.connect()
    kept = connection.sock
    for idle_s in (6, 0):  # the HTTP client of Python's libraries keeps idle connections for 5 s
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
        time.sleep(idle_s)
    assert connection.sock is kept
    connection.close()


@pytest.mark.slow
def test_first_start_makes_the_key_and_a_stop_is_graceful(folder: Path) -> None:
    process = Process(folder, begun_by=PLAIN).start().wait()
    status, conversation = process.call("POST", "/v1/conversations", {}, key=process.key)
    assert status == 201
    assert (folder / "admin-key").stat().st_mode & 0o777 == 0o600
    code, said = process.stop()
    assert code in {0, -signal.SIGTERM}
    assert f"http://127.0.0.1:{process.port}/docs" in said
    assert f"in the file {folder}/admin-key" in said
    assert "tk_" not in said, "no key goes where it may be kept: this is no terminal"
    again = Process(folder, begun_by=PLAIN).start().wait()
    assert again.call("GET", f"/v1/conversations/{conversation['id']}", key=process.key)[0] == 200
    again.stop()
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    migrated = [line["revision"] for line in lines if line["event"] == "schema.migrated"]
    assert migrated == known_revisions()


@pytest.mark.slow
def test_in_a_terminal_the_first_start_shows_a_key_once_and_logs_are_text(folder: Path) -> None:
    shown: list[str] = []
    for _ in range(2):
        with terminal() as (stderr, text):
            process = Process(folder).start(stderr=stderr).wait()
            process.stop()
            shown.append(text())
    first, later = shown
    assert f"schema.migrated                revision={head_revision()}" in first
    assert not any(line.startswith("{") for line in (first + later).splitlines())
    assert "tk_" not in later
    for each in shown:
        assert f"in the file {folder}/admin-key" in each
        assert process.key not in each
    keys = re.findall(r"tk_\S+", first)
    assert len(keys) == 1
    process = Process(folder).start().wait()
    status, _ = process.call("POST", "/v1/conversations", {}, key=keys[0])
    assert status == 201
    status, refused = process.call("GET", "/v1/admin/keys", key=keys[0])
    assert (status, refused["code"]) == (403, "forbidden")
    made = process.command("keys", "create", "--name", "short", "--expires-days", "2")
    assert made.returncode == 0, made.stderr
    listed = process.command("keys", "list").stdout
    rows = {row[0].strip(): [cell.strip() for cell in row] for row in _rows(listed)}
    assert rows["admin key"][1] == "read write admin operator"
    assert rows["first key"][1] == "read write"
    assert [rows[name][5] for name in ("admin key", "first key")] == ["never", "never"]
    in_two_days = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()
    assert rows["short"][5].startswith(in_two_days)
    process.stop()


def _rows(table: str) -> list[list[str]]:
    return [line.strip("│ \n").split("│") for line in table.splitlines() if line.startswith("│")]


@pytest.mark.slow
def test_two_processes_start_at_once_on_one_data_directory_and_see_the_same(folder: Path) -> None:
    pair = [Process(folder).start() for _ in range(2)]
    for process in pair:
        process.wait()
    one, two = pair
    made = one.call("POST", "/v1/conversations", {"external_id": "x"}, key=one.key)
    got = two.call("POST", "/v1/conversations", {"external_id": "x"}, key=one.key)
    assert (made[0], got[0]) == (201, 200)
    assert made[1]["id"] == got[1]["id"]
    one.stop()
    assert two.call("GET", f"/v1/conversations/{made[1]['id']}", key=one.key)[0] == 200
    two.stop()


@pytest.mark.slow
def test_a_key_revoked_by_the_command_line_is_refused_within_a_second(running: tuple[Process, Process]) -> None:
    process, _ = running
    made = process.command("keys", "create", "--scope", "read", "--name", "reader")
    assert made.returncode == 0, made.stderr
    reader = made.stdout.strip()
    assert process.call("GET", "/v1/conversations", key=reader)[0] == 200
    assert process.call("POST", "/v1/conversations", {}, key=reader)[0] == 403
    listed = process.command("keys", "list")
    assert f"{reader.split('_')[1]}/{reader.split('_')[2]}" in listed.stdout
    assert reader.split("_", 3)[3] not in listed.stdout
    assert process.command("keys", "revoke", reader).returncode == 0
    until = time.monotonic() + 1.0
    while process.call("GET", "/v1/conversations", key=reader)[0] == 200:
        assert time.monotonic() < until, "still good after a second"
    other = process.command("keys", "create", "--new-tenant", "second").stdout.strip()
    assert process.call("GET", "/v1/conversations", key=other)[1]["data"] == []


@pytest.mark.slow
def test_keys_are_made_for_the_only_tenant_and_rotated_by_the_command_line(folder: Path) -> None:
    migrated_data(folder)
    process = Process(folder, prot="1").start().wait()
    process.stop()
    _, said = process.stop()
    assert said.count("without effect") == 1
    assert "TURNKEEP_PROT (did you mean TURNKEEP_PORT?)" in said
    (folder / "admin-key").unlink()
    process = Process(folder).start().wait()
    made = process.command("keys", "create", "--scope", "admin")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert process.call("GET", "/v1/admin/keys", key=key)[0] == 200
    name = "/".join(key.split("_")[1:3])
    assert name in process.command("keys", "list").stdout
    rotated = process.command("keys", "rotate", name)
    assert rotated.returncode == 0, rotated.stderr
    assert process.call("GET", "/v1/admin/keys", key=rotated.stdout.strip())[0] == 200
    until = time.monotonic() + 3.0
    while process.call("GET", "/v1/admin/keys", key=key)[0] == 200:
        assert time.monotonic() < until, "the old secret is still good"
    kept = process.command("keys", "rotate", rotated.stdout.strip(), "--grace-s", "60")
    assert process.call("GET", "/v1/admin/keys", key=kept.stdout.strip())[0] == 200
    assert process.command("keys", "rotate", "nonsense").returncode == 1
    assert process.command("keys", "create", "--new-tenant", "second").returncode == 0
    refused = process.command("keys", "create")
    assert refused.returncode == 1
    assert "name one with --tenant (`turnkeep keys list` shows their ids)" in refused.stderr
    assert process.command("keys", "create", "--tenant", name.split("/")[0]).returncode == 0
    assert "<bool>" not in process.command("keys", "rotate", "--help").stdout
    assert "<bool>" not in process.command("--help").stdout
    process.stop()


@pytest.mark.slow
def test_a_data_folder_that_cannot_be_written_is_answered_with_another_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for settings in ({}, {"database_url": "postgresql://x@127.0.0.1:1/x"}):
        done = Process(tmp_path / "file" / "data", **settings).command("serve")
        assert done.returncode == 1
        said = done.stderr.splitlines()[-1]
        if not settings:
            assert "Choose a folder that this user can write, with TURNKEEP_DATA_DIR, or set" in said
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_key_revoked_on_one_replica_is_refused_on_the_other_within_a_second(running: tuple[Process, Process]) -> None:
    pair = one, two = running
    _, made = one.call("POST", "/v1/admin/keys", {"name": "k", "scopes": ["read"]}, key=one.key)
    assert [process.call("GET", "/v1/conversations", key=made["key"])[0] for process in pair] == [200, 200]
    _, rotated = two.call("POST", f"/v1/admin/keys/{made['id']}/rotate", {}, key=one.key)
    until = time.monotonic() + 1.0
    while one.call("GET", "/v1/conversations", key=made["key"])[0] == 200:
        assert time.monotonic() < until, "the old secret is still good after a second"
    assert [process.call("GET", "/v1/conversations", key=rotated["key"])[0] for process in pair] == [200, 200]
    assert one.call("DELETE", f"/v1/admin/keys/{made['id']}", key=one.key)[0] == 204
    assert one.call("GET", "/v1/conversations", key=rotated["key"])[1]["code"] == "key_revoked", "at once here"
    until = time.monotonic() + 1.0
    while two.call("GET", "/v1/conversations", key=rotated["key"])[0] == 200:
        assert time.monotonic() < until, "still good elsewhere after a second"


@pytest.mark.slow
def test_the_doctor_looks_and_changes_nothing(folder: Path) -> None:
    process = Process(folder)
    before = process.command("doctor", "--json")
    assert before.returncode == 0, before.stdout + before.stderr
    levels = {check["name"]: check["level"] for check in json.loads(before.stdout)["checks"]}
    assert levels["database"] == "warn"
    assert not folder.exists()
    asked = process.command("doctor", "--invariants")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "not running" in asked.stderr
    migrated_data(folder)
    process.start().wait()
    _, conversation = process.call("POST", "/v1/conversations", {}, key=process.key)
    path = f"/v1/conversations/{conversation['id']}/turns"
    process.call("POST", path, {"turns": [{"role": "user", "content": "hello"}]}, key=process.key)
    while_it_runs = process.command("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(while_it_runs.stdout)["checks"]}
    assert {name for name, check in checks.items() if check["level"] != "ok"} <= {"disk"}
    assert checks["port"]["found"].startswith("Turnkeep answers")
    assert {"postgres version", "clock", "schema", "admin key", "durability", "roles"} <= set(checks)
    tenant = process.key.split("_")[1]
    of_tenant = process.command("doctor", "--invariants", "--json", "--tenant", tenant, "--limit", "1")
    assert json.loads(of_tenant.stdout) == {"healthy": True, "faults": []}
    (folder / "admin-key").chmod(0o644)
    after = process.command("doctor")
    assert after.returncode == 1
    assert "chmod" in after.stdout
    assert process.key not in after.stdout + while_it_runs.stdout
    process.stop()


@pytest.mark.slow
def test_a_preset_bootstrap_key_is_valid_from_the_first_start(folder: Path) -> None:
    key = Process(folder).command("keys", "generate").stdout.strip()
    process = Process(folder, bootstrap_key=key).start().wait()
    assert process.call("GET", "/v1/conversations", key=key)[0] == 200
    assert not (folder / "admin-key").exists()
    code, said = process.stop()
    assert code in {0, -signal.SIGTERM}
    assert key not in said


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bootstrap_key": "tk_wrong"}, "TURNKEEP_BOOTSTRAP_KEY is not of the form"),
        ({"database_url": "postgresql://nobody@127.0.0.1:1/none"}, "The database does not answer"),
        ({"database_url": "mysql://somebody@127.0.0.1/none"}, "a database URL is like postgresql://"),
        ({"database_url": "postgresql+asyncpg://nobody@127.0.0.1:1/none"}, "The database does not answer"),
        ({"host": "192.0.2.1"}, "cannot be listened on"),
    ],
)
@pytest.mark.slow
def test_a_start_that_fails_says_why_in_one_sentence(folder: Path, settings: dict[str, str], sentence: str) -> None:
    done = Process(folder, **settings).command("serve")
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert len(said) == 1, done.stderr
    assert sentence in said[0]


def test_a_setting_that_is_no_setting_value_is_refused_by_name(folder: Path) -> None:
    done = Process(folder, database_pool_size="many").command("serve")
    assert done.returncode == 1
    assert "TURNKEEP_DATABASE_POOL_SIZE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_request_under_way_is_finished_before_the_process_ends(data: Path) -> None:
    # on a busy machine 200 turns take longer than the default
    process = Process(data, graceful_shutdown_s="60").start().wait()
    _, conversation = process.call("POST", "/v1/conversations", {}, key=process.key)
    body = json.dumps({"turns": [{"role": "user", "content": f"long text number {n} " * 40} for n in range(200)]})
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as caller:
        head = (
            f"POST /v1/conversations/{conversation['id']}/turns HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json\r\n"
            f"Authorization: Bearer {process.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        caller.sendall(head.encode() + body.encode())
        time.sleep(0.2)
        assert process.serving is not None
        process.serving.send_signal(signal.SIGTERM)
        assert b" 201 " in caller.recv(4096).split(b"\r\n")[0]
    process.stop()


def test_a_head_without_end_is_cut_off_without_effect_on_other_clients(running: tuple[Process, Process]) -> None:
    process, _ = running
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as attacker:
        attacker.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Filler: ")
        answer = b""
        try:
            for _ in range(1000):
                attacker.sendall(b"a" * 2**16)
            answer = attacker.recv(4096)
        except OSError:  # the server has closed while we were still sending
            pass
        assert answer == b"" or b" 431 " in answer.split(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", process.port), timeout=30) as caller:
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Filler: " + b"a" * 30_000 + b"\r\n\r\n")
        assert b" 200 " in caller.recv(4096).split(b"\r\n")[0]
    assert process.call("GET", "/readyz")[0] == 200


@pytest.mark.slow
def test_a_command_in_the_wrong_folder_makes_no_data_there(folder: Path) -> None:
    done = Process(folder).command("keys", "list")
    assert done.returncode == 1
    assert "There is no Turnkeep data in" in done.stderr
    assert not folder.exists()


@pytest.mark.slow
def test_a_worker_takes_over_what_a_killed_one_had_and_stops_in_order(data: Path) -> None:
    quick = {"worker_in_process": "false", "max_vectors_per_append": "1", "job_lease_s": "1"}
    server = Process(data, **quick).start().wait()
    _, conversation = server.call("POST", "/v1/conversations", {}, key=server.key)
    path = f"/v1/conversations/{conversation['id']}/turns"
    turns = [{"role": "user", "content": f"{n} " + "some words of a turn " * 40} for n in range(100)]
    server.call("POST", path, {"turns": turns}, key=server.key)

    def pending() -> int:
        history = server.call("GET", f"{path}?limit=200", key=server.key)[1]["data"]
        return sum(turn["index_state"] == "pending" for turn in history)

    def wait_until(reached: Any) -> None:
        until = time.monotonic() + START_S
        while not reached():
            assert time.monotonic() < until, pending()
            time.sleep(0.1)

    assert pending() == 99
    killed, other = (Process(data, **quick).start("worker") for _ in range(2))
    wait_until(lambda: pending() < 99)
    assert killed.serving is not None
    killed.serving.kill()
    wait_until(lambda: pending() == 0)
    wait_until(lambda: server.call("GET", "/v1/admin/jobs", key=server.key)[1]["data"] == [])
    code, said = other.stop()
    assert code == 0, said
    server.stop()


@pytest.mark.slow
def test_open_sockets_and_event_streams_end_at_once_when_the_process_is_stopped(data: Path) -> None:
    process = Process(data, embedder="none", graceful_shutdown_s="20").start().wait()
    _, conversation = process.call("POST", "/v1/conversations", {}, key=process.key)
    path = f"/v1/conversations/{conversation['id']}"
    headers = {"Authorization": f"Bearer {process.key}"}
    events = socket.create_connection(("127.0.0.1", process.port), timeout=30)
    request = f"GET {path}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {headers['Authorization']}\r\n\r\n"
    events.sendall(request.encode())
    live = f"ws://127.0.0.1:{process.port}{path}/live"
    with connect(f"{live}?x=SECRETQUERY", additional_headers=headers, proxy=None) as refused:
        assert json.loads(refused.recv(10))["code"] == "invalid_request"
    with connect(live, additional_headers=headers, proxy=None) as one:
        one.send('{"type":"subscribe"}')
        assert json.loads(one.recv(10))["type"] == "ack"
        assert json.loads(one.recv(10))["type"] == "snapshot"
        began = time.monotonic()
        assert process.serving is not None
        process.serving.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed):
            one.recv(10)
        assert one.protocol.close_code == 1012
    said = b""
    while piece := events.recv(65536):
        said += piece
    assert b"event: snapshot" in said
    assert said.endswith(b"0\r\n\r\n"), "ended, not cut"
    code, log = process.stop()
    assert code in {0, -signal.SIGTERM}
    assert time.monotonic() - began < 10
    assert "SECRETQUERY" not in log
    assert '"live.connected"' in log
    assert '"live.closed"' in log
