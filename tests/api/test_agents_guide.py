"""What the guide of agents prints of several agents in one conversation works as printed, and is answered so."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.tenancy.schemas import Scope
from tests.support.api import Client, Service
from tests.support.live import serving

GUIDE = (Path(__file__).parents[2] / "docs/guides/agents.md").read_text()
BLOCK = re.compile(r"^```(bash|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BETWEEN = "=== next block ==="


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    """The app on a real socket."""
    async with serving(service.app, service.settings) as listening:
        yield listening


def section(title: str) -> str:
    """A section of the guide with those below it."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def says(answer: Any, shown: Any, place: str = "") -> None:
    """Fail unless an answer holds what is shown of it: shown objects may lack members, and ids are cut by `…`."""
    if isinstance(shown, dict):
        for name, value in shown.items():
            says(answer[name], value, f"{place}/{name}")
    elif isinstance(shown, list):
        assert len(answer) == len(shown), place
        for number, (one, other) in enumerate(zip(answer, shown, strict=True)):
            says(one, other, f"{place}/{number}")
    elif isinstance(shown, str) and shown.endswith("…"):
        assert isinstance(answer, str), place
    else:
        assert answer == shown, place


async def test_several_agents_in_one_conversation_work_as_the_guide_shows(
    service: Service, client: Client, port: int
) -> None:
    keys = {
        name: str(
            await service.container.tenancy.create_key(
                client.tenant_id, name=name, scopes=[Scope.READ, Scope.WRITE], agent_id=name
            )
        )
        for name in ("planner", "booker")
    }
    blocks = BLOCK.findall(section("Several agents in one conversation"))
    commands = [code for language, code in blocks if language == "bash"]
    script = f"\necho; echo '{BETWEEN}'\n".join(commands).replace("127.0.0.1:8765", f"127.0.0.1:{port}")
    # the command wants the data folder of a server of its own; here it prints the key of the agent that is named last
    command = 'set -euo pipefail\nturnkeep() { printenv "${@: -1}"; }\n'
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", command + script],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **keys}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = dict(zip(commands, done.stdout.split(f"\n{BETWEEN}\n"), strict=True))
    shown = 0
    for (language, code), (following, answer) in pairwise(blocks):
        if (language, following) == ("bash", "json"):
            says(json.loads(printed[code]), json.loads(answer))
            shown += 1
    assert shown == sum(language == "json" for language, _ in blocks)
    assert '"code"' not in "".join(text for code, text in printed.items() if "TOKEN" not in code)
