"""`serve --processes N`: one port, processes that are replaced when they end, and none left behind."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.command import migrated_data
from tests.support.process import Process, children, free_port, process_folder

pytestmark = pytest.mark.slow


def until(condition: Callable[[], Any], *, seconds: float = 60) -> Any:
    give_up = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    return found


def two_free_ports() -> int:
    """The first of two ports after each other that are free."""
    while True:
        first = free_port()
        with socket.socket() as second, suppress(OSError, OverflowError):
            second.bind(("127.0.0.1", first + 1))
            return first


class Several:
    """A service of two processes and a worker, under its supervisor."""

    def __init__(self, folder: Path) -> None:
        self.metrics_port = two_free_ports()
        self.process = Process(folder, processes="2", metrics_port=str(self.metrics_port)).start().wait()
        assert self.process.serving is not None
        self.supervisor = self.process.serving.pid
        self.headers = {"Authorization": f"Bearer {self.process.key}"}
        self.url = f"http://127.0.0.1:{self.process.port}"
        until(self.are_listed)

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A request on a connection of its own, which any process may accept."""
        return httpx.request(method, self.url + path, headers=self.headers, timeout=20, **more)

    def are_listed(self) -> bool:
        """Whether all processes have started: two servers and a worker."""
        answer = self.call("GET", "/v1/admin/replicas")
        assert answer.status_code == 200, answer.text
        pids = set(children(self.supervisor))
        found = [one["kind"] for one in answer.json()["data"] if one["process_number"] in pids]
        return sorted(found) == ["server", "server", "worker"]

    def have_metrics(self) -> bool:
        """Whether each server serves metrics on its own port."""
        ports = (self.metrics_port, self.metrics_port + 1)
        return all("turnkeep_" in httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=20).text for port in ports)

    def append(self, conversation: str, text: str) -> None:
        answer = self.call(
            "POST", f"/v1/conversations/{conversation}/turns", json={"turns": [{"role": "user", "content": text}]}
        )
        assert answer.status_code == 201, answer.text

    def history(self, conversation: str) -> list[str]:
        answer = self.call("GET", f"/v1/conversations/{conversation}/turns?limit=200")
        return [turn["content"] for turn in answer.json()["data"]]


@pytest.fixture(scope="module")
def several() -> Iterator[Several]:
    """A service for the tests that leave it running. Its stop ends every process, and the database with them."""
    with process_folder() as folder:
        migrated_data(folder / "data")
        started = Several(folder / "data")
        yield started
        pids = children(started.supervisor)
        code, said = started.process.stop()
        assert code == 0, said
        assert "Traceback" not in said
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_one_process_stores_every_process_finds_at_once(several: Several) -> None:
    conversation = several.call("POST", "/v1/conversations", json={}).json()["id"]
    for number in range(20):
        several.append(conversation, f"The code of drawer {number} is {number * 7919}.")
        asked = {"query": f"code of drawer {number}", "k": 3}
        answer = several.call("POST", f"/v1/conversations/{conversation}/recall", json=asked)
        assert str(number * 7919) in answer.text
    assert len(several.history(conversation)) == 20


def test_a_process_that_is_killed_is_replaced_and_the_others_serve_meanwhile(several: Several) -> None:
    conversation = several.call("POST", "/v1/conversations", json={}).json()["id"]
    before = set(children(several.supervisor))
    os.kill(min(before), signal.SIGKILL)
    for number in range(10):
        several.append(conversation, f"turn {number}")
    until(lambda: len(set(children(several.supervisor)) - before) == 1)
    until(several.are_listed)
    assert several.history(conversation) == [f"turn {number}" for number in range(10)]


def test_a_reload_replaces_every_process_and_refuses_no_request(several: Several) -> None:
    conversation = several.call("POST", "/v1/conversations", json={}).json()["id"]
    before = set(children(several.supervisor))
    os.kill(several.supervisor, signal.SIGHUP)
    sent = 0
    give_up = time.monotonic() + 90
    while len(now := set(children(several.supervisor))) != len(before) or now & before:
        several.append(conversation, f"turn {sent}")
        sent += 1
        assert time.monotonic() < give_up
    assert several.history(conversation)[-1] == f"turn {sent - 1}"
    assert several.have_metrics()


def test_no_process_outlives_a_supervisor_that_was_killed() -> None:
    with process_folder() as folder:
        migrated_data(folder / "data")
        several = Several(folder / "data")
        left = children(several.supervisor)
        os.kill(several.supervisor, signal.SIGKILL)
        assert several.process.serving is not None
        several.process.serving.wait(20)
        until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in left))


@pytest.mark.parametrize("taken", ["port", "metrics_port"])
def test_several_processes_that_cannot_start_say_why_once(several: Several, tmp_path: Path, taken: str) -> None:
    # of the two ports for metrics, the second one is taken
    port = several.process.port if taken == "port" else several.metrics_port - 1
    done = Process(tmp_path, processes="2", **{taken: str(port)}).command("serve")
    assert done.returncode == 1
    assert "cannot be listened on" in done.stderr
    assert "Traceback" not in done.stderr


def test_ports_for_metrics_that_include_the_port_of_the_service_are_refused(tmp_path: Path) -> None:
    service = Process(tmp_path, processes="3")
    service.env["TURNKEEP_METRICS_PORT"] = str(service.port - 2)
    done = service.command("serve")
    assert (done.returncode, "TURNKEEP_METRICS_PORT needs free ports" in done.stderr) == (1, True), done.stderr
