"""`/mcp` before the public conformance suite of the protocol, in two of its versions (needs `npx` and the network).

The suite is written for a server that has its fixtures: tools such as `test_simple_text`, resources such as
`test://static-text`, prompts. A service has none of them. So most of its scenarios cannot be passed here, and each
check that is not is in `EXPECTED` under the reason. A run fails where any other check fails, where one of these passes,
and where the suite looked at less or more than is said.
"""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.api import Client, Service
from tests.support.live import serving

TOOLS = "it calls a tool of the suite's own; unknown tools are -32602, as they are to be"
RESOURCES = "it reads a resource of the suite's own, which is not there"
PROMPTS = "it asks for prompts, which are not declared; the method is not found"
COMPLETIONS = "it asks for completions, which are not declared"
LOGGING = "it sets a level of logging to the client, which is not declared"
SUBSCRIPTIONS = "it subscribes to a resource, where subscribe is declared to be false"
TASKS = "it asks for the extension of tasks, which is not declared"
HEADERS = "it wants a tool with an argument that is repeated in a header, and no tool of ours has one"
SESSIONS = "a warning: without sessions there is no stream to come back to"
ECHO = "a warning: the URI of a resource that is not there is not said again, as nothing is that was sent"

EXPECTED: dict[str, dict[str, list[str]]] = {
    TOOLS: {
        "elicitation-sep1034-defaults": ["elicitation-sep1034-general"],
        "elicitation-sep1330-enums": ["elicitation-sep1330-general"],
        "input-required-result-basic-elicitation": ["sep-2322-elicitation-incomplete"],
        "input-required-result-basic-list-roots": ["sep-2322-list-roots-incomplete"],
        "input-required-result-basic-sampling": ["sep-2322-sampling-incomplete"],
        "input-required-result-capability-check": ["sep-2322-respect-client-capabilities"],
        "input-required-result-ignore-extra-params": ["sep-2322-ignore-unexpected-params"],
        "input-required-result-missing-input-response": ["sep-2322-missing-response-rerequests"],
        "input-required-result-multi-round": ["sep-2322-multi-round-r1"],
        "input-required-result-multiple-input-requests": ["sep-2322-multiple-inputs-incomplete"],
        "input-required-result-request-state": ["sep-2322-request-state-incomplete"],
        "input-required-result-result-type": ["sep-2322-result-type-included"],
        "input-required-result-tampered-state": ["sep-2322-reject-tampered-state"],
        "json-schema-2020-12": ["json-schema-2020-12-tool-found"],
        "server-stateless": [
            "sep-2575-server-rejects-undeclared-capability",
            "sep-2575-missing-capability-http-400",
            "sep-2575-http-server-no-independent-requests-on-stream",
            "sep-2575-server-no-log-without-loglevel",
        ],
        "tools-call-audio": ["tools-call-audio"],
        "tools-call-elicitation": ["tools-call-elicitation"],
        "tools-call-embedded-resource": ["tools-call-embedded-resource"],
        "tools-call-error": ["tools-call-error"],
        "tools-call-image": ["tools-call-image"],
        "tools-call-mixed-content": ["tools-call-mixed-content"],
        "tools-call-sampling": ["tools-call-sampling"],
        "tools-call-simple-text": ["tools-call-simple-text"],
        "tools-call-with-progress": ["tools-call-with-progress"],
    },
    RESOURCES: {
        "resources-read-binary": ["resources-read-binary"],
        "resources-read-text": ["resources-read-text"],
        "resources-templates-read": ["resources-templates-read"],
    },
    PROMPTS: {
        "caching": ["sep-2549-prompts-list-caching-hints"],
        "input-required-result-non-tool-request": ["sep-2322-non-tool-incomplete"],
        "prompts-get-embedded-resource": ["prompts-get-embedded-resource"],
        "prompts-get-simple": ["prompts-get-simple"],
        "prompts-get-with-args": ["prompts-get-with-args"],
        "prompts-get-with-image": ["prompts-get-with-image"],
        "prompts-list": ["prompts-list"],
    },
    COMPLETIONS: {
        "completion-complete": ["completion-complete"],
    },
    LOGGING: {
        "logging-set-level": ["logging-set-level"],
        "tools-call-with-logging": ["tools-call-with-logging"],
    },
    SUBSCRIPTIONS: {
        "resources-subscribe": ["resources-subscribe"],
        "resources-unsubscribe": ["resources-unsubscribe"],
    },
    TASKS: {
        "tasks-capability-negotiation": [
            "tasks-extension-advertised",
            "sep-2663-tasks-methods-non-declaring",
            "sep-2663-server-rejects-undeclared-client",
            "tasks-per-request-meta-opt-in",
        ],
        "tasks-dispatch-and-envelope": [
            "tasks-server-directed-creation-no-hint",
            "sep-2663-legacy-task-param-ignored",
            "tasks-immediate-result-shortcut",
            "tasks-result-type-complete-on-non-task-responses",
            "sep-2663-durable-create-strong-consistency",
            "sep-2663-tasks-get-invalid-task-id-32602",
        ],
        "tasks-lifecycle": [
            "tasks-sync-tool-call",
            "sep-2663-result-type-task-on-create",
            "sep-2663-tasks-get-status-working",
            "sep-2663-tasks-get-status-completed",
            "sep-2663-tool-error-uses-completed-status",
            "sep-2663-tasks-get-status-failed",
            "sep-2663-cancel-ack-empty-result",
            "tasks-cancel-terminal-idempotent-ack",
        ],
        "tasks-mrtr-composition": ["sep-2663-mrtr-synchronous-before-task-creation"],
        "tasks-mrtr-input": [
            "sep-2663-tasks-get-status-input-required",
            "tasks-mrtr-tasks-update-resumes",
            "tasks-mrtr-partial-fulfillment",
        ],
        "tasks-request-headers": [
            "tasks-headers-tolerate-mcp-method-on-tools-call",
            "sep-2663-routing-headers-accepted-on-tasks-get",
            "sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",
        ],
        "tasks-request-state-removal": ["tasks-request-state-removal-setup"],
        "tasks-required-task-error": ["sep-2663-server-returns-missing-capability-when-required"],
        "tasks-wire-fields": [
            "tasks-wire-field-renames",
            "tasks-no-early-ttl-expiry",
            "tasks-no-related-task-meta-on-inlined-result",
        ],
    },
    HEADERS: {
        "http-custom-header-server-validation": [
            "sep-2243-server-no-xmcp-tool",
            "sep-2243-server-decode-base64",
            "sep-2243-server-validate-param-match",
            "sep-2243-server-reject-invalid-param-chars",
            "sep-2243-server-reject-param-mismatch",
        ],
    },
    SESSIONS: {
        "server-sse-multiple-streams": ["server-sse-multiple-streams-session"],
        "server-sse-polling": ["server-sse-polling-session"],
    },
    ECHO: {
        "sep-2164-resource-not-found": ["sep-2164-data-uri"],
    },
}
"""By reason and scenario, the checks that do not pass: failures, and warnings where the reason says so."""

RUNS = {
    # version of the suite, its arguments: scenarios that are run, checks that pass, checks that do not
    ("0.1.16",): (32, 6, 27),
    ("0.2.0-alpha.12",): (65, 114, 80),
    ("0.2.0-alpha.12", "--spec-version", "2026-07-28"): (40, 89, 40),
}


def with_key(app: ASGIApp, key: str) -> ASGIApp:
    """The application for a client that cannot send a key."""

    async def sent(scope: Scope, receive: Receive, send: Send) -> None:
        header = (b"authorization", f"Bearer {key}".encode())
        await app({**scope, "headers": [*scope["headers"], header]}, receive, send)

    return sent


def checks_of(version: str, arguments: tuple[str, ...], url: str, folder: Path) -> list[tuple[str, str, str]]:
    """What the suite found: scenario, check and its status."""
    packages = ["-p", "node@22", "-p", f"@modelcontextprotocol/conformance@{version}"]
    suite = ["conformance", "server", "--url", url, "--suite", "all", "-o", str(folder), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    done = subprocess.run(
        ["npx", "--yes", *packages, "--", *suite], env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    found = sorted(folder.glob("server-*/checks.json"))
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return [
        # the folder is server-SCENARIO-TIME, and the time has six parts
        (path.parent.name.removeprefix("server-").rsplit("-", 6)[0], check["id"], check["status"])
        for path in found
        for check in json.loads(path.read_text())
    ]


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("npx") is None, reason="npx is not installed: apt install npm")
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
async def test_the_public_suite_finds_nothing_but_what_is_expected(
    service: Service, client: Client, run: tuple[str, ...], tmp_path: Path
) -> None:
    await client.conversation(title="one to read")
    expected = {
        (scenario, check)
        for scenarios in EXPECTED.values()
        for scenario, checks in scenarios.items()
        for check in checks
    }
    async with serving(with_key(service.app, client.key), service.settings) as port:
        checks = await asyncio.to_thread(checks_of, run[0], run[1:], f"http://127.0.0.1:{port}/mcp", tmp_path)
    bad = {(scenario, check) for scenario, check, status in checks if status in {"FAILURE", "WARNING"}}
    passed = [(scenario, check) for scenario, check, status in checks if status == "SUCCESS"]
    assert bad - expected == set()
    assert expected & set(passed) == set()
    assert (len({scenario for scenario, _, _ in checks}), len(passed), len(bad)) == RUNS[run]
