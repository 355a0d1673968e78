"""Each configuration in the guide to MCP clients is read, and what it names connects to a server."""

import json
import re
import shlex
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.api.test_mcp import OFFERED
from tests.support.api import Client, Service
from tests.support.command import TURNKEEP
from tests.support.live import serving
from tests.support.mcp import ACCEPT, message

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/mcp-clients.md"
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^```(jsonc|toml|yaml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
URL_FIELDS = {  # as the vendor of each client documents them: the object of servers, and the field of the URL
    "Claude Code": ("mcpServers", "url"),
    "Codex": ("mcp_servers", "url"),
    "Continue": ("mcpServers", "url"),
    "Cursor": ("mcpServers", "url"),
    "Gemini CLI": ("mcpServers", "httpUrl"),
    "LM Studio": ("mcpServers", "url"),
    "VS Code": ("servers", "url"),
    "Windsurf": ("mcpServers", "serverUrl"),
    "Zed": ("context_servers", "url"),
}
FOR_ALL_CLIENTS = {"Try it", "If a client does not connect"}
HERE = "http://127.0.0.1:8765/mcp"
PUBLIC = "https://memory.example.com/mcp"
KEY = "the-key"
PLACES_OF_KEYS = re.compile(
    r"tk_…|\$\{\{ secrets\.TURNKEEP_API_KEY \}\}|\$\{(env:)?TURNKEEP_API_KEY\}|\$TURNKEEP_API_KEY"
    r"|\$\{input:turnkeep-key\}"
)
"""How the clients write where the key comes from."""


@dataclass(frozen=True)
class Connection:
    """What a configuration says: a URL with headers, or a program with its environment."""

    client: str
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)


def connection(client: str, language: str, text: str) -> Connection:
    text = PLACES_OF_KEYS.sub(KEY, text)
    if language == "console":
        words = shlex.split(text)
        assert words[:5] == ["claude", "mcp", "add", "--transport", "http"]
        name, _, value = words[words.index("--header") + 1].partition(": ")
        return Connection(client, words[6], {name: value})
    read = {"jsonc": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}[language]
    given: dict[str, Any] = read(text)
    if given.get("type") == "mcp":
        return Connection(client, given["server_url"], given["headers"])
    group, url = URL_FIELDS.get(client, ("mcpServers", "url"))
    server = given[group][0] if isinstance(given[group], list) else given[group]["turnkeep"]
    if "command" in server:
        return Connection(client, program=server)
    headers = server.get("headers") or server.get("requestOptions", {}).get("headers")
    if "bearer_token_env_var" in server:
        assert server["bearer_token_env_var"] == "TURNKEEP_API_KEY"
        headers = {"Authorization": f"Bearer {KEY}"}
    return Connection(client, server[url], headers)


CONNECTIONS = [
    connection(title, language, text)
    for title, section in SECTION.findall(GUIDE.read_text())
    for language, text in SNIPPET.findall(section)
]
BY_URL = [one for one in CONNECTIONS if one.url]
PROGRAMS = [one for one in CONNECTIONS if one.program]


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    """The app on a real socket."""
    async with serving(service.app, service.settings) as listening:
        yield listening


def test_every_client_of_the_table_has_its_section_and_its_configuration() -> None:
    page = GUIDE.read_text()
    listed = re.findall(r"^\| \[(.+?)\]\(#(.+?)\)", page, re.MULTILINE)
    titles = [title for title, _ in SECTION.findall(page) if title not in FOR_ALL_CLIENTS]
    assert [anchor for _, anchor in listed] == [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in titles]
    assert {one.client for one in CONNECTIONS} == set(titles) - {"OpenAI Agents SDK"}
    assert {one.client for one in CONNECTIONS} > set(URL_FIELDS)


async def test_a_server_accepts_the_url_and_the_header_of_each_configuration(client: Client, port: int) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        for one in BY_URL:
            assert one.url == (PUBLIC if one.client == "OpenAI's Responses API" else HERE), one.client
            headers = {name: value.replace(KEY, client.key) for name, value in one.headers.items()}
            url = f"http://127.0.0.1:{port}{httpx.URL(one.url).path}"
            answer = await http.post(url, json=message("tools/list"), headers=ACCEPT | headers)
            assert answer.status_code == 200, one.client
            assert [tool["name"] for tool in answer.json()["result"]["tools"]] == OFFERED


def test_a_program_is_started_with_the_url_and_the_key_of_a_server() -> None:
    bridge, remote = PROGRAMS
    assert (bridge.client, remote.client) == ("Claude Desktop", "Other clients")
    assert bridge.program["command"].endswith("/.venv/bin/turnkeep")
    arguments, variables = remote.program["args"], remote.program["env"]
    assert HERE in arguments
    name, _, value = arguments[arguments.index("--header") + 1].partition(":")
    [(variable, content)] = variables.items()
    assert (name, value, content) == ("Authorization", f"${{{variable}}}", f"Bearer {KEY}")


@pytest.mark.slow
async def test_the_program_of_the_guide_connects_over_standard_input_and_output(client: Client, port: int) -> None:
    [program] = [one.program for one in PROGRAMS if one.client == "Claude Desktop"]
    variables = {
        name: value.replace(KEY, client.key).replace("127.0.0.1:8765", f"127.0.0.1:{port}")
        for name, value in program["env"].items()
    }
    parameters = StdioServerParameters(
        command=TURNKEEP[0], args=[*TURNKEEP[1:], *program["args"]], env=variables, cwd=ROOT
    )
    async with McpClient(stdio_client(parameters)) as mcp:
        assert [tool.name for tool in (await mcp.list_tools()).tools] == OFFERED
