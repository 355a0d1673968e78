"""Very many requests made from the OpenAPI document by schemathesis: no 500, and every answer as documented.

    .venv/bin/python -m tests.soak.schema --cases 20000 --state /tmp/schema.json

Runs schemathesis in rounds against a server in a process of its own: examples of the document, limits of each schema,
random requests, and sequences in which the answer of one operation gives the ids for the next. One half of the cases
has the key of a new tenant, the other half an operator's. A round counts only if its key is still valid at its end.
Afterwards the log must have no error, and `turnkeep doctor --invariants` finds nothing. A run given the same state file
goes on after its last round.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tests.soak.crash import say
from tests.soak.installation import Installation
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, plain_reply

_REPOSITORY: Final = Path(__file__).parents[2]
_DOCUMENT: Final = _REPOSITORY / "openapi" / "openapi.json"
_PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
_CHECKS: Final = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "use_after_free",
)  # fmt: skip
# their answers end only with the connection
_ENDLESS: Final = ("follow_conversation", "follow_conversations")
# they end the key that the round is made with
_ENDING: Final = ("revoke_key", "rotate_key")
ROLES: Final = ("tenant", "operator")


@dataclass(slots=True)
class Tally:
    """What was sent with each key: answers by role and status, how many rounds, and what was wrong."""

    answers: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def sent(self, role: str) -> int:
        """How many requests of a role were answered."""
        return sum(count for name, count in self.answers.items() if name.startswith(f"{role} "))

    def __str__(self) -> str:
        lines = [f"{role}: {self.sent(role)} cases in {self.rounds[role]} round(s)" for role in ROLES]
        lines += [f"  {name}: {count}" for name, count in sorted(self.answers.items())]
        return "\n".join([*lines, f"wrong: {len(self.wrong)}", *self.wrong])


def read_report(path: Path) -> Counter[int]:
    """Count the answers in a report of schemathesis (`--report ndjson`) by status."""
    statuses: Counter[int] = Counter()
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            finished = json.loads(line).get("ScenarioFinished")
            for interaction in (finished or {}).get("recorder", {}).get("interactions", {}).values():
                if interaction.get("response") is not None:
                    statuses[interaction["response"]["status_code"]] += 1
    return statuses


async def _make_key(http: httpx.AsyncClient, role: str, number: int) -> str:
    """Return the secret of a new operator's key, or of the first key of a new tenant."""
    if role == "operator":
        scopes = ["read", "write", "admin", "operator"]
        made = await http.post("/v1/admin/keys", json={"name": f"round {number}", "scopes": scopes})
        made.raise_for_status()
        return str(made.json()["key"])
    made = await http.post("/v1/admin/tenants", json={"name": f"round {number}"})
    made.raise_for_status()
    return str(made.json()["first_key"]["key"])


async def _schemathesis(url: str, key: str, report: Path, seed: int, examples: int) -> tuple[int, str]:
    """Run it once; gives its exit code and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("st")), "run", str(_DOCUMENT), "--url", url,
        "--header", f"Authorization: Bearer {key}", "--phases", ",".join(_PHASES), "--checks", ",".join(_CHECKS),
        "--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure", "--no-shrink", "--no-color",
        "--generation-database", "none", "--generation-with-security-parameters", "false",
        "--suppress-health-check", "all", "--warnings", "off", "--request-timeout", "60",
        "--exclude-operation-id-regex", f"^({'|'.join(_ENDLESS + _ENDING)})$",
        "--report", "ndjson", "--report-ndjson-path", str(report),
        env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks"}, cwd=_REPOSITORY,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    written, _ = await process.communicate()
    return await process.wait(), written.decode(errors="replace")


async def run_round(tally: Tally, role: str, *, seed: int, examples: int) -> None:
    """Send one round's cases to a new installation, and add what came back to the tally."""
    async with open_fake_chat() as fake:
        fake.reply = plain_reply
        settings = {
            "TURNKEEP_LLM_MODEL": CHAT_MODEL, "TURNKEEP_LLM_BASE_URL": fake.url,
            "TURNKEEP_ENABLE_INTERNAL_AGENT": "true", "TURNKEEP_RATE_LIMITS_ENABLED": "false",
        }  # fmt: skip
        installation = Installation(1, settings)
        try:
            await installation.start()
            url = f"http://127.0.0.1:{installation.ports[0]}"
            with tempfile.TemporaryDirectory() as folder:
                report = Path(folder) / "report.ndjson"
                async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                    http.headers["Authorization"] = f"Bearer {installation.key}"
                    key = await _make_key(http, role, seed)
                    code, written = await _schemathesis(url, key, report, seed, examples)
                    http.headers["Authorization"] = f"Bearer {key}"
                    still = (await http.get("/v1/conversations")).status_code
                answers = await asyncio.to_thread(read_report, report)
            if code:
                tally.wrong.append(f"{role}, seed {seed}: schemathesis ended with {code}\n{_failures(written)}")
            if still == 200:
                tally.rounds[role] += 1
                tally.answers.update({f"{role} {status}": count for status, count in answers.items()})
            else:
                tally.answers[f"not counted, {role}: the key answered {still} at the end"] += answers.total()
            tally.wrong += [f"{role}, seed {seed}: logged {line}" for line in installation.errors_logged()]
            tally.wrong += [
                f"{role}, seed {seed}: a server ended with {code}" for code in installation.servers[0].own_exits
            ]
            code, written, complained = await installation.command("doctor", "--invariants")
            if code:
                tally.wrong.append(f"{role}, seed {seed}: doctor {written[-1500:]} {complained[-500:]}")
        finally:
            tally.wrong += await installation.stop()
            installation.remove()


def _failures(written: str) -> str:
    """What schemathesis wrote of its failures, without the progress before it."""
    found = re.search(r"^=+ (ERRORS|FAILURES) =+$.*", written, re.MULTILINE | re.DOTALL)
    return (found.group(0) if found else written)[-20_000:]


def run_all(seed: int, *, cases: int, examples: int, state: Path | None) -> Tally:
    """Run rounds until each role has sent `cases` with a key that stayed valid; goes on from the state file."""
    tally = Tally()
    if state is not None and state.exists():
        kept = json.loads(state.read_text())
        tally = Tally(Counter(kept["answers"]), Counter(kept["rounds"]), kept["wrong"])
    number = tally.rounds.total()
    while not tally.wrong and (due := [role for role in ROLES if tally.sent(role) < cases]):
        number += 1
        role = min(due, key=tally.sent)
        asyncio.run(run_round(tally, role, seed=seed * 1000 + number, examples=examples))
        say(f"round {number}\n{tally}")
        if state is not None:
            kept = {"answers": tally.answers, "rounds": tally.rounds, "wrong": tally.wrong}
            state.write_text(json.dumps(kept))
    return tally


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="with each of the two keys")
    parser.add_argument("--examples", type=int, default=20, help="of each operation in a round")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    parser.add_argument("--state", type=Path, default=None)
    given = parser.parse_args()
    tally = run_all(given.seed, cases=given.cases, examples=given.examples, state=given.state)
    raise SystemExit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
