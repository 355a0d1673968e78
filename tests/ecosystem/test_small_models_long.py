"""Real small chat models behind a server with its default settings: nothing that they say replaces what people said.

A model of this size is slow, and it is often wrong. So no answer is expected of it; the checks are what must hold
whatever it says. `make ecosystem` runs two short conversations with SmolLM2-135M, and one with Qwen2.5-0.5B.

The long form is one conversation of 240 turns. It continues a run that was stopped, in the folder that is named:

    TURNKEEP_SMALL_MODEL_TURNS=240 TURNKEEP_SMALL_MODEL_FOLDER=/tmp/small pytest -n 0 -s --timeout 14400 \
        tests/ecosystem/test_small_models_long.py -k qwen
"""

import asyncio
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from app.context.compaction.claims import Shown, SummarySource
from app.formats.parse.text_calls import read_text_calls
from tests.ecosystem.local_model import Endpoint, EndpointCall
from tests.properties.test_coverage_properties import check as check_coverage
from tests.support.command import migrated_data
from tests.support.process import Process, process_folder

TURNS = int(os.environ.get("TURNKEEP_SMALL_MODEL_TURNS", "60"))
MINUTES = float(os.environ.get("TURNKEEP_SMALL_MODEL_MINUTES", "200" if TURNS > 60 else "25"))
# read here, because a test does not see the variables of the service
FOLDER = os.environ.get("TURNKEEP_SMALL_MODEL_FOLDER")
CONVERSATIONS = {"smollm2": 2, "qwen": 1}
AT_ONCE = 4
BUDGETS = [300, 600, 1200, 2500, 100_000]
LONGEST_CALL_S = 600
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
TOOLS = ["recall_memory", "store_memory", "recall", "get_history"]
TALK = [
    ("I moved to {city} in {month}.", "How do you like {city}?"),
    ("The flat has {number} rooms and a small balcony.", "Do you grow anything on the balcony?"),
    ("My sister {name} visits me on {day}.", "What will you and {name} do on {day}?"),
    ("We want to see the museum; a ticket is {number} euros.", "I was there in {month}, and I liked the boats."),
    ("I am allergic to {food}.", "Then I will not bring {food} to the party."),
    ("{name} has a new job at a bakery.", "Since when does {name} work there?"),
    ("Since {month}. The first train leaves at {number} past five.", "That is early!"),
    ("I started to paint again, mostly the harbour of {city}.", "Will you show me the pictures?"),
    ("I sold one for {number} euros last week.", "I am so proud of you."),
    ("My dog is called Biscuit, and hates the rain.", "My cat sleeps {number} hours a day."),
    ("Could you lend me your tent in {month}?", "Yes, take it on {day}."),
    ("I run {number} kilometres every {day}.", "I prefer to swim with {name}."),
]
SLOTS = {
    "city": ["Lisbon", "Leeds", "Trieste", "Bergen", "Ghent"],
    "month": ["January", "May", "August", "October"],
    "day": ["Monday", "Wednesday", "Friday", "Sunday"],
    "name": ["Clara", "Tomas", "Ines", "Robert", "Julia", "Samir", "Nora"],
    "food": ["peanuts", "shrimps", "walnuts"],
    "number": ["3", "12", "18", "25", "40", "64"],
}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(int((MINUTES + 30) * 60))]


def turns_of(conversation: int) -> list[dict[str, Any]]:
    """A conversation of two people, the same in each run."""
    said = [line for pair in TALK for line in pair]
    turns: list[dict[str, Any]] = []
    for number in range(TURNS):
        at = number + 7 * conversation
        slots = {name: values[(at // 3 + at // len(said)) % len(values)] for name, values in SLOTS.items()}
        turns.append(
            {
                "role": "user" if number % 2 == 0 else "assistant",
                "actor": "mia" if number % 2 == 0 else "tom",
                "content": said[number % len(said)].format(**slots),
                "occurred_at": (START + timedelta(minutes=number)).isoformat(),
            }
        )
    return turns


class Run:
    """One server and one model, and a client that waits longer than the model can need."""

    def __init__(self, process: Process, endpoint: Endpoint) -> None:
        self.process, self.endpoint = process, endpoint
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{process.port}",
            headers={"Authorization": f"Bearer {process.key}"},
            timeout=LONGEST_CALL_S,
        )

    def get(self, path: str) -> Any:
        response = self._http.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self._http.post(path, json=body, headers=headers)

    def turns(self, conversation: str) -> list[dict[str, Any]]:
        """All turns of a conversation, the oldest first."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"next_cursor": None}
        while True:
            cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else ""
            page = self.get(f"/v1/conversations/{conversation}/turns?limit=200&order=asc{cursor}")
            found += page["data"]
            if not page["has_more"]:
                return found


@contextmanager
def run_of(model: str) -> Iterator[Run]:
    """A server with its default settings and the model, in the folder of a run that was stopped if there is one."""
    with process_folder() as temporary:
        folder = Path(FOLDER) / model if FOLDER else temporary
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)
        if not (folder / "data").exists():
            migrated_data(folder / "data")
        with Endpoint(model, folder / "calls.jsonl").serving() as endpoint, (folder / "log").open("a") as log:
            process = Process(folder / "data", llm_base_url=endpoint.url, llm_model=model, enable_internal_agent="true")
            process.start(stderr=log.fileno()).wait()
            try:
                yield Run(process, endpoint)
            finally:
                process.stop()


def fill(run: Run, number: int) -> str:
    """Append the turns of a conversation that are missing, a few at once; return its id."""
    body = {"external_id": f"talk-{number}", "owner": "mia", "facts": {"enabled": True}}
    conversation = run.post("/v1/conversations", body).json()["id"]
    turns = turns_of(number)
    stored = sum(turn["actor"] in {"mia", "tom"} for turn in run.turns(conversation))
    for at in range(stored, TURNS, AT_ONCE):
        answer = run.post(f"/v1/conversations/{conversation}/turns", {"turns": turns[at : at + AT_ONCE]})
        assert answer.status_code == 201, answer.text
    return conversation


def wait_for_jobs(run: Run) -> float:
    """Wait until no job is due; return the seconds. Jobs that wait for a later time are what a refresh does."""
    began = time.monotonic()
    quiet = 0
    while quiet < 3:
        assert time.monotonic() - began < MINUTES * 60, run.get("/v1/admin/jobs")
        soon = (datetime.now(UTC) + timedelta(minutes=2)).isoformat()
        jobs = run.get("/v1/admin/jobs?limit=200")["data"]
        assert not [job for job in jobs if job["state"] == "parked"], jobs
        due = [job for job in jobs if job["state"] == "running" or job["run_at"] < soon]
        quiet = 0 if due else quiet + 1
        time.sleep(2)
    return time.monotonic() - began


# what must hold


def check_contexts(run: Run, conversation: str) -> None:
    """Check that every turn is shown, covered or counted, for all budgets."""
    turns = run.turns(conversation)
    summaries = run.get(f"/v1/conversations/{conversation}/summaries?limit=200")["data"]
    for budget in BUDGETS:
        body = {"token_budget": budget, "query": "Where does Mia live?"}
        response = run.post(f"/v1/conversations/{conversation}/context", body)
        assert response.status_code == 200, response.text
        check_coverage(body, response.json(), turns, summaries)


def check_summaries(run: Run, conversation: str) -> Counter[str]:
    """Check the stored summaries against their turns; return how many valid ones there are of each kind."""
    turns = run.turns(conversation)
    summaries = run.get(f"/v1/conversations/{conversation}/summaries?limit=200")["data"]
    for summary in summaries:
        if summary["kind"] == "summary":
            sources = sources_of(summary, summaries, turns)
            assert SummarySource(sources).refusal(summary["text"]) is None, summary
            assert len(summary["abstract"]) <= len(summary["text"]), summary
        else:
            check_lines(summary, turns)
    return Counter(
        f"{summary['kind']}, {summary['refused_for'] or 'accepted'}" for summary in summaries if summary["valid"]
    )


def sources_of(summary: dict[str, Any], summaries: list[Any], turns: list[Any]) -> list[Shown]:
    """What a summary was written from: the model's summaries that it replaced, and the other turns of its range."""
    before = [one for one in summaries if one["replaced_by"] == summary["id"] and one["kind"] == "summary"]
    covered = {at for one in before for at in range(one["from_position"], one["to_position"] + 1)}
    places = range(summary["from_position"], summary["to_position"] + 1)
    read = [turn for turn in turns if turn["position"] in places and turn["position"] not in covered]
    return [
        *(Shown(one["text"]) for one in before),
        *(Shown(turn["content"], turn["actor"], datetime.fromisoformat(turn["occurred_at"])) for turn in read),
    ]


def check_lines(highlights: dict[str, Any], turns: list[Any]) -> None:
    """Check that each line of highlights is text of its turn, after the date and the actor."""
    texts = {turn["id"]: " ".join((turn["content"] or "").split()) for turn in turns}
    for line in highlights["lines"]:
        said = re.sub(r"^\[[^\]]*\] ", "", line["text"])
        assert all(part.strip() in texts[line["turn_id"]] for part in said.split("\u2026")), line


def check_facts(run: Run, conversations: list[str]) -> int:
    """Check that the words and numbers of each fact occur in a turn that it names; return the number of facts."""
    texts = {turn["id"]: turn["content"] or "" for one in conversations for turn in run.turns(one)}
    facts = run.get("/v1/facts?limit=100")["data"]
    for fact in facts:
        sources = " ".join(texts.get(turn_id, "") for turn_id in fact["source_turn_ids"]).casefold()
        assert sources, fact
        numbers = re.findall(r"\d+", fact["object"])
        words = re.findall(r"[^\W\d_]{4,}", fact["object"].casefold())
        assert all(re.search(rf"(?<!\d){number}(?!\d)", sources) for number in numbers), (fact, sources)
        assert sum(word[:4] in sources for word in words) * 2 >= len(words), (fact, sources)
        assert fact["confidence"] < 1 or len(fact["source_turn_ids"]) > 0, fact
    return len(facts)


def check_ledger(run: Run, calls: list[EndpointCall]) -> None:
    """Check that the ledger has the tokens of the endpoint: of each answer, and the estimate for each one that is gone.

    A request that the endpoint refuses costs nothing.
    """
    rows = run.get("/v1/admin/usage")["data"]
    answered = [call for call in calls if call.outcome == "answered"]
    gone = [call for call in calls if call.outcome == "gone"]
    prompt = sum(call.prompt_tokens for call in answered) + sum(call.prompt_estimate for call in gone)
    written = sum(call.completion_tokens for call in answered)
    assert sum(row["prompt_tokens"] for row in rows) == prompt, (rows, gone)
    assert sum(row["completion_tokens"] for row in rows) == written, rows
    assert sum(row["calls"] for row in rows) <= len(calls)


def check_answer(response: httpx.Response) -> str:
    """Check an answer of `ask_agent`: no tool call, or an error of the model."""
    if response.status_code != 200:
        code = response.json()["code"]
        assert code.startswith(("model_", "agent_")), response.text
        return str(code)
    text = response.json()["response"]
    read = read_text_calls(text, TOOLS)
    assert not read.calls, text
    assert not read.is_unreadable, text
    return "answered"


def check_doors(run: Run) -> Counter[str]:
    """Ask by every way to a generated answer; return what became of each."""
    outcomes: Counter[str] = Counter()
    question = [{"role": "user", "content": "In one sentence: what have we talked about?"}]
    for stream in (False, True):
        body: dict[str, Any] = {"external_id": "talk-0", "messages": question, "stream": stream}
        response = run.post("/v1/generate", body | {"parameters": {"max_tokens": 80}})
        outcomes[f"generate {response.status_code}"] += 1
        assert ("event: done" in response.text) == stream, response.text
        body = {"messages": question, "stream": stream, "max_tokens": 80, "model": run.endpoint.name}
        answer = run.post("/openai/v1/chat/completions", body, **{"X-Conversation-Id": "talk-0"})
        assert answer.status_code == 200, answer.text
        assert ("[DONE]" in answer.text) == stream, answer.text
        outcomes["openai 200"] += 1
    for query in ("What is Mia allergic to?", "Remember that Melanie is allergic to peanuts.", "Say hello."):
        memories = run.get("/v1/memories")["data"]
        response = run.post("/v1/agent/ask", {"query": query})
        outcomes[f"ask_agent {check_answer(response)}"] += 1
        is_stored = len(run.get("/v1/memories")["data"]) > len(memories)
        assert is_stored <= (response.status_code != 200 or "store_memory" in response.json()["tools_used"])
    return outcomes


class Report(NamedTuple):
    """The figures of a run. `calls_of_jobs`: the number of calls before the first question."""

    model: str
    turns: int
    seconds: float
    summaries: Counter[str]
    facts: int
    titles: Counter[str]
    outcomes: Counter[str]
    calls: list[EndpointCall]
    calls_of_jobs: int

    def lines(self) -> list[str]:
        """The figures as a table."""
        gone = [call for call in self.calls if call.outcome == "gone"]
        rows = {
            "turns": self.turns,
            "seconds until no job was due": round(self.seconds),
            **{f"summaries: {kind}": count for kind, count in sorted(self.summaries.items())},
            "facts": self.facts,
            **{f"titles: {kind}": count for kind, count in sorted(self.titles.items())},
            **dict(sorted(self.outcomes.items())),
            "calls of the endpoint": len(self.calls),
            "refused by the endpoint": sum(call.outcome == "refused" for call in self.calls),
            "given up while they were answered": sum(call.has_begun for call in gone),
            "given up in the endpoint's queue": sum(not call.has_begun for call in gone),
            "longest wait in the endpoint's queue (s)": round(max(call.waited_s for call in self.calls), 1),
            "tokens": tokens_of(self.calls),
            "lost by calls that were given up (%)": round(100 * lost_share(self.calls), 1),
            "the same before the questions (%)": round(100 * lost_share(self.calls[: self.calls_of_jobs]), 1),
        }
        return [f"| {self.model} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def tokens_of(calls: list[EndpointCall]) -> int:
    """The tokens that a model has read and written."""
    return sum(call.prompt_tokens + call.completion_tokens for call in calls if call.has_begun)


def lost_share(calls: list[EndpointCall]) -> float:
    """The share of the tokens of calls that were given up."""
    return tokens_of([call for call in calls if call.outcome == "gone"]) / max(1, tokens_of(calls))


@pytest.mark.parametrize("model", CONVERSATIONS)
async def test_behind_a_small_model_turns_are_shown_facts_supported_and_tokens_counted(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = await asyncio.to_thread(checked_run, model)
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *report.lines(), ""]))
    if TURNS > 60:
        check_long_form(report)


def checked_run(model: str) -> Report:
    """Run all of it, and check what must hold."""
    with run_of(model) as run:
        conversations = [fill(run, number) for number in range(1 if TURNS > 60 else CONVERSATIONS[model])]
        seconds = wait_for_jobs(run)
        calls_of_jobs = len(run.endpoint.calls())
        for conversation in conversations:
            check_contexts(run, conversation)
        outcomes = check_doors(run)
        wait_for_jobs(run)
        summaries: Counter[str] = Counter()
        for conversation in conversations:
            check_contexts(run, conversation)
            summaries += check_summaries(run, conversation)
        facts = check_facts(run, conversations)
        titles = Counter(
            "none" if one["title"] is None else "there" for one in run.get("/v1/conversations?limit=100")["data"]
        )
        calls = run.endpoint.calls()
        check_ledger(run, calls)
        return Report(model, TURNS, seconds, summaries, facts, titles, outcomes, calls, calls_of_jobs)


def check_long_form(report: Report) -> None:
    """Check the figures of the jobs of the long form: no call is given up in a queue, and few tokens are lost.

    A question to the agent has a limit of its own, which is too short for this model.
    """
    calls = report.calls[: report.calls_of_jobs]
    assert not [call for call in calls if call.outcome == "gone" and not call.has_begun]
    assert lost_share(calls) < 0.05
