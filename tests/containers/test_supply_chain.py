"""The bill of materials and the look-up of advisories: both are made from the lock file."""

import json
import os
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.process import ROOT

UV = ROOT / ".venv/bin/uv"
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
ADVISORY = "GHSA-0000-0000-0000"

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not installed in the environment: make dev")


def make(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "UV_HTTP_RETRIES": "0"},
    )  # fmt: skip


@contextmanager
def advisories(of: str | None) -> Iterator[str]:
    """The URL of a service in the form of OSV, which knows one advisory for a package."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            known = {"id": ADVISORY, "modified": "2026-01-01T00:00:00Z"}
            self._send({"results": [{"vulns": [known]} if one["package"]["name"] == of else {} for one in queries]})

        def do_GET(self) -> None:
            times = {"modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z"}
            affected = {"package": {"ecosystem": "PyPI", "name": of}, "ranges": []}
            self._send({"id": ADVISORY, "summary": "made up", "affected": [affected], **times})

        def _send(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the class
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_the_bill_of_materials_lists_every_locked_package_of_an_installation_with_its_hashes() -> None:
    made = make("sbom")
    assert made.returncode == 0, made.stderr
    document = json.loads((ROOT / "dist/turnkeep.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["name"] == "turnkeep"
    locked = {(one["name"], one.get("version")) for one in LOCK["package"]}
    listed = {(one["name"], one["version"]): one for one in document["components"]}
    assert set(listed) <= locked
    (root,) = (one for one in LOCK["package"] if one["name"] == "turnkeep")
    assert {one["name"] for one in root["dependencies"]} <= {name for name, _ in listed}
    assert not {"pytest", "ruff", "schemathesis"} & {name for name, _ in listed}, "the tools of development"
    for (name, _), component in listed.items():
        if name == "turnkeep-minilm":
            continue  # built from the tree; its build compares its files with their pinned hashes
        hashes = [one["hashes"][0]["alg"] for one in component["externalReferences"]]
        assert hashes, name
        assert set(hashes) == {"SHA-256"}, name


@pytest.mark.parametrize(("package", "status"), [(None, 0), ("uvicorn", 1)], ids=["none", "one"])
def test_the_advisories_of_the_locked_packages_decide_the_exit_code(package: str | None, status: int) -> None:
    with advisories(package) as url:
        made = make("advisories", f"ADVISORIES=--service-url {url}")
    assert f"Error {status}" in made.stderr if status else made.returncode == 0, made.stderr
    assert (ADVISORY in made.stdout) is (package is not None)
    assert "NOT checked" not in made.stderr


@pytest.mark.timeout(60)
def test_a_service_that_does_not_answer_is_no_clean_result() -> None:
    made = make("advisories", "ADVISORIES=--service-url http://127.0.0.1:1/")
    assert made.returncode != 0
    assert "The advisories were NOT checked" in made.stderr
    assert "Found no known" not in made.stdout


def test_neither_is_part_of_what_a_commit_needs() -> None:
    rules = (ROOT / "Makefile").read_text()
    (check,) = (line for line in rules.splitlines() if line.startswith("check:"))
    assert "advisories" not in check
    assert "sbom" not in check
