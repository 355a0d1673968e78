"""Random replies of a model that has tools: a call is run or refused and never stored as an answer; an answer is kept.

The replies are built from calls and answers, so the test knows what each is. `TURNKEEP_PROPERTY_EXAMPLES=2000` is the
long form: this many replies through the API, and ten times as many through the reader.
"""

import json
import os
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, Literal, NamedTuple

import pytest

from app.formats.parse.text_calls import read_text_calls
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.postgres import TestDatabase
from tests.support.timing import PATIENT_MS

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "60"))
SEED = 42
GRANTED = ["recall_memory", "store_memory", "recall", "get_history"]
UNKNOWN = ["delete_memory", "web_search", "get_weather", "functions.recall"]
WORDS = [
    "peanuts",
    "Melanie",
    "in Lisbon",
    'a "quoted" word',
    "}",
    "{",
    "]",
    "```",
    "<tool_call>",
    "天気",
    "\n",
    "\\",
    "é",
]
PEOPLE = ["Melanie", "Caroline", "Tom Brown", "Ana-Maria", "Zoë", "Lee"]
Json = dict[str, Any]
Kind = Literal["call", "broken", "answer"]


class Chance(Random):
    """Choices that a seed repeats."""


class Sample(NamedTuple):
    """A reply, and what it is. `calls`: the names and arguments of its calls."""

    kind: Kind
    text: str
    calls: tuple[tuple[str, Json], ...] = ()


def random_text(chance: Chance) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(1, 5)))


def random_arguments(chance: Chance) -> Json:
    arguments: Json = {chance.choice(["query", "content"]): random_text(chance)}
    if chance.random() < 0.3:
        arguments["top_k"] = chance.randint(1, 20)
    if chance.random() < 0.1:
        arguments["filters"] = {"name": random_text(chance), "arguments": [{"x": None}]}
    return arguments


SHAPES: list[Callable[[str, Json], Any]] = [
    lambda name, arguments: {"name": name, "arguments": arguments},
    lambda name, arguments: {"name": name, "parameters": arguments},
    lambda name, arguments: {"arguments": arguments, "name": name},
    lambda name, arguments: {"name": name, "arguments": json.dumps(arguments)},
    lambda name, arguments: {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}},
    lambda name, arguments: {"function": {"name": name, "parameters": arguments}},
    lambda name, arguments: {"function": name, "arguments": arguments},
    lambda name, arguments: {"tool": name, "arguments": arguments},
    lambda name, arguments: {"tool_name": name, "tool_input": arguments},
    lambda name, arguments: {"tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}}]},
]
WRAPS: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"\n  {text}\n\n",
    lambda text: f"```json\n{text}\n```",
    lambda text: f"```\n{text}\n```",
    lambda text: f"```tool_call\n{text}\n```",
    lambda text: f"<tool_call>\n{text}\n</tool_call>",
    lambda text: f"<tool_call>{text}",
    lambda text: f"<function_call>{text}</function_call>",
    lambda text: f"[TOOL_CALLS]{text}",
    lambda text: f"<|python_tag|>{text}<|eom_id|>",
    lambda text: f"{text}<|im_end|>",
    lambda text: f"<think>\nI call a tool: {{\n</think>\n{text}",
]


def json_of(chance: Chance, value: Any) -> str:
    return json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, None, 2]))


def random_call(chance: Chance) -> Sample:
    count = 1 if chance.random() < 0.8 else chance.randint(2, 4)
    called = tuple((chance.choice(GRANTED), random_arguments(chance)) for _ in range(count))
    if count == 1 and chance.random() < 0.15:
        [(name, arguments)] = called
        written = json_of(chance, arguments)
        head, tail = chance.choice([(f"<function={name}>", "</function>"), (f"[TOOL_CALLS]{name}[ARGS]", "")])
        return Sample("call", f"{head}{written}{tail}", called)
    shapes = [chance.choice(SHAPES)(name, arguments) for name, arguments in called]
    if chance.random() < 0.5:
        return Sample("call", chance.choice(WRAPS)(json_of(chance, shapes if count > 1 else shapes[0])), called)
    return Sample("call", "\n".join(chance.choice(WRAPS[2:8])(json_of(chance, shape)) for shape in shapes), called)


def random_broken_call(chance: Chance) -> Sample:
    name, arguments = chance.choice(GRANTED), random_arguments(chance)
    whole = json.dumps({"name": name, "arguments": arguments})
    written = json.dumps(arguments)
    wrong = chance.choice(UNKNOWN)
    texts = [
        whole[:-1],
        whole[:-2],
        whole[: chance.randint(len(f'{{"name": "{name}", "arguments":'), len(whole) - 1)],
        whole[1:],
        whole.replace('"', "'"),
        whole.replace('"name"', "name").replace('"arguments"', "arguments"),
        whole.replace('"name"', "“name”").replace(f'"{name}"', f"“{name}”"),
        whole.replace(",", ",,", 1),
        f"{whole[:-1]}, // the call\n}}",
        f'{{"name": "{name}", "name": "{name}", "arguments": {written}}}',
        f"{whole}\nI have stored it for you.",
        json.dumps({"name": name, "arguments": arguments, "status": "success"}),
        json.dumps([{"name": name, "arguments": arguments}, {"note": "done"}]),
        json.dumps({"name": name}),
        json.dumps({"name": wrong, "arguments": arguments}),
        f"<tool_call>{json.dumps({'name': wrong, 'parameters': arguments})}</tool_call>",
        f"<tool_call>\n{name}\n{random_text(chance)}\n</tool_call>",
        f"<tool_call>\n<function={name}>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>",
        f"<function={name}>{whole[:-3]}",
        f"[TOOL_CALLS]{whole[:-1]}",
        f"{name}(query={json.dumps(random_text(chance))})",
        f'```python\n{name}(query="x")\n```',
        f"Thought: I search.\nAction: {name}\nAction Input: {written}",
        f"I will look it up.\n<tool_call>\n{whole}\n</tool_call>",
        whole[:-1] + " " * chance.choice([0, 100_000]),
        f'{{"name": "{name}", "arguments": {{"query": "{"peanuts " * chance.choice([10, 20_000])}',
    ]
    text = chance.choice(texts)
    if text.startswith("{") and text.count("\n") < 2:
        text = chance.choice(WRAPS)(text)
    return Sample("broken", text)


def random_answer(chance: Chance) -> Sample:
    person: Json = {"name": chance.choice(PEOPLE)}
    if chance.random() < 0.7:
        person |= {chance.choice(["age", "allergies", "parameters", "role"]): chance.choice([3, ["x"], {"a": 1}, None])}
    call = json.dumps({"name": chance.choice(GRANTED), "arguments": random_arguments(chance)})
    texts = [
        random_text(chance) + ".",
        "Melanie is allergic to peanuts. " * chance.choice([1, 1, 400]),
        "Sie mag keine Erdnüsse. 彼女はピーナッツが嫌いです。",
        json_of(chance, person),
        json_of(chance, [person, {"name": chance.choice(PEOPLE)}]),
        f"```json\n{json_of(chance, person)}\n```",
        f"Here is the JSON:\n```json\n{json_of(chance, person)}\n```\nAnything else?",
        f"You once wrote this: {call} and it is stored.",
        f"A call looks like this:\n```json\n{call}\n```",
        json_of(chance, {"answer": person, "sources": [1, 2]}),
        json_of(chance, {"name": "resnet", "parameters": {"rate": 0.1}}),
        json_of(chance, {"quoted": call}),
        "```python\nprint(recall)\n```",
        "recall: to bring back to mind",
        "I can search (recall) and store.",
        chance.choice(["42", '"yes"', "[]", "{}", "null", "[1, 2]", "{", "[[[[" * 2000]),
        f"<think>{call}</think>Peanuts.",
        "The steps:\n1. {ask}\n2. {answer}",
    ]
    text = chance.choice(texts).strip()
    return Sample("answer", text if text and "<tool_call>" not in text else "Peanuts.")


def random_reply(chance: Chance) -> Sample:
    return chance.choice([random_call, random_broken_call, random_answer])(chance)


def test_calls_are_read_whole_and_answers_are_not_calls() -> None:
    chance = Chance(SEED)
    for _ in range(EXAMPLES * 10):
        sample = random_reply(chance)
        read = read_text_calls(sample.text, GRANTED)
        calls = tuple((call.name, json.loads(call.arguments)) for call in read.calls)
        assert (read.is_unreadable, calls) == (sample.kind == "broken", sample.calls), sample


@pytest.fixture(scope="module")
async def agency(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, FakeChat]]:
    """An app with the agent and a fake model."""
    async with (
        open_fake_chat() as fake,
        open_service(
            words_database, tmp_path_factory.mktemp("data"), embedder="none", llm_base_url=fake.url,
            llm_model=CHAT_MODEL, llm_timeout_ms=PATIENT_MS, llm_max_retries=0, enable_internal_agent=True,
        ) as opened,
    ):  # fmt: skip
        yield opened, fake


@pytest.mark.timeout(3600)
async def test_no_call_is_stored_as_an_answer_and_every_answer_is(agency: tuple[Service, FakeChat]) -> None:
    service, fake = agency
    chance = Chance(SEED + 1)
    async with await service.new_tenant() as user:
        for number in range(EXAMPLES):
            sample = random_reply(chance)
            await check_ask(user, fake, sample, number)
            await check_generate(user, fake, sample)


async def check_ask(user: Client, fake: FakeChat, sample: Sample, number: int) -> None:
    """Ask: the model replies with the sample, again after a note, and with words after the results of tools."""

    def reply(request: Json) -> Reply:
        return says("It is done." if request["messages"][-1]["role"] == "tool" else sample.text)

    fake.reply = reply
    response = await user.post("/v1/agent/ask", json={"query": f"question {number}"})
    if sample.kind == "broken":
        assert (response.status_code, response.json()["code"]) == (502, "agent_call_invalid"), sample
        return
    assert response.status_code == 200, (sample, response.text)
    answer = response.json()
    stored = [turn["content"] for turn in await user.history(answer["conversation_id"])]
    if sample.kind == "answer":
        assert stored == [f"question {number}", sample.text.rpartition("</think>")[2]], "thoughts are never stored"
    else:
        assert stored[1].startswith("It is done."), sample
        assert len(stored) == 2


async def check_generate(user: Client, fake: FakeChat, sample: Sample) -> None:
    """Generate: the client offers the tools, so calls go to the client."""
    fake.reply = says(sample.text)
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in GRANTED]
    body = {"messages": [{"role": "user", "content": "question"}], "parameters": {"tools": tools}}
    response = await user.post("/v1/generate", json=body)
    assert response.status_code == 200, (sample, response.text)
    turn = response.json()["turns"][-1]
    called = tuple(
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in turn["tool_calls"] or []
    )
    mark = {"call": "read", "broken": "unreadable", "answer": None}[sample.kind]
    assert (called, turn["metadata"].get("text_call")) == (sample.calls, mark), sample
    assert turn["content"] == (None if sample.kind == "call" else sample.text)
