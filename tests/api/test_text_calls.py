"""Tool calls that a model writes as text: run by `ask_agent`, and given to the client by a generated answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from app.agents.ask.service import NOT_STORED, UNFINISHED
from app.agents.generation.answer import TEXT_CALL
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, calls, open_fake_chat, says
from tests.support.live import serving
from tests.support.mcp import mcp_client
from tests.support.timing import PATIENT_MS

ASK = "/v1/agent/ask"
PEANUTS = "Melanie is allergic to peanuts."
STORE = json.dumps({"name": "store_memory", "arguments": {"content": PEANUTS}})
BROKEN = STORE[:-1]
SEARCH: Any = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
QUERY: Any = {"query": "peanuts"}
SEARCHES = json.dumps({"name": "search", "arguments": QUERY})
QUESTION: Any = {"role": "user", "content": "What must Melanie avoid?"}


@pytest.fixture(scope="module")
async def endpoint() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture
def fake(endpoint: FakeChat) -> FakeChat:
    endpoint.reply, endpoint.replies, endpoint.chats = says("Done."), [], []
    return endpoint


@pytest.fixture(scope="module")
async def agency(service: Service, endpoint: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database,
        tmp_path_factory.mktemp("agency"),
        llm_base_url=endpoint.url,
        llm_model=CHAT_MODEL,
        llm_timeout_ms=PATIENT_MS,
        llm_max_retries=0,
        enable_internal_agent=True,
    ) as opened:
        yield opened


@pytest.fixture
async def user(agency: Service) -> AsyncIterator[Client]:
    async with await agency.new_tenant() as opened:
        yield opened


@pytest.fixture(scope="module")
async def port(agency: Service) -> AsyncIterator[int]:
    async with serving(agency.app, agency.settings) as listening:
        yield listening


@pytest.fixture
async def ai(agency: Service, port: int, user: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [agency.check]})
    base = f"http://127.0.0.1:{port}/openai/v1"
    async with openai.AsyncOpenAI(api_key=user.key, base_url=base, max_retries=0, http_client=http) as opened:
        yield opened


async def ask(user: Client, query: str) -> dict[str, Any]:
    answer = await user.post(ASK, json={"query": query})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def memories(user: Client) -> list[str]:
    return [memory["content"] for memory in (await user.get("/v1/memories")).json()["data"]]


async def turns_of_all(user: Client) -> list[dict[str, Any]]:
    conversations = (await user.get("/v1/conversations")).json()["data"]
    return [turn for conversation in conversations for turn in await user.history(conversation["id"])]


# ask_agent


@pytest.mark.parametrize(
    "text",
    [
        STORE,
        json.dumps({"name": "store_memory", "parameters": {"content": PEANUTS}}),
        json.dumps([{"name": "store_memory", "arguments": json.dumps({"content": PEANUTS})}]),
        json.dumps({"tool": "store_memory", "arguments": {"content": PEANUTS}}),
        json.dumps({"type": "function", "function": {"name": "store_memory", "arguments": {"content": PEANUTS}}}),
        f"```json\n{STORE}\n```",
        f"<tool_call>\n{STORE}\n</tool_call>",
        f'<function=store_memory>{{"content": "{PEANUTS}"}}</function>',
        f"[TOOL_CALLS][{STORE}]",
        f"<think>I store it.</think>\n\n{STORE}",
    ],
)
async def test_a_call_that_is_written_as_text_is_run(user: Client, fake: FakeChat, text: str) -> None:
    fake.replies = [says(text), says("I will remember that.")]
    answer = await ask(user, f"Remember that {PEANUTS}")
    assert (answer["response"], answer["tools_used"]) == ("I will remember that.", ["store_memory"])
    assert await memories(user) == [PEANUTS]
    repeated = fake.chats[1]["messages"]
    assert repeated[2]["tool_calls"][0]["function"]["name"] == "store_memory"
    assert [message["role"] for message in repeated] == ["system", "user", "assistant", "tool"]


async def test_over_mcp_a_call_that_is_written_as_text_is_run(port: int, user: Client, fake: FakeChat) -> None:
    fake.replies = [says(STORE), says("I will remember that.")]
    async with mcp_client(port, user.key) as client:
        answer = await client.call_tool("ask_agent", {"query": f"Remember that {PEANUTS}"})
    assert "I will remember that." in str(answer)
    assert "arguments" not in str(answer)
    assert await memories(user) == [PEANUTS]


@pytest.mark.parametrize(
    "text",
    [
        BROKEN,
        json.dumps({"name": "delete_memory", "arguments": {"content": PEANUTS}}),
        f"<tool_call>{BROKEN}",
        f'store_memory(content="{PEANUTS}")',
        f"I store it.\n<tool_call>\n{STORE}\n</tool_call>",
        f"{STORE}\nI have stored it.",
    ],
)
async def test_a_call_that_cannot_be_read_gets_one_more_round_and_then_an_error(
    user: Client, fake: FakeChat, text: str
) -> None:
    fake.replies = [says(text), says(STORE), says("I will remember that.")]
    assert (await ask(user, "Remember it."))["tools_used"] == ["store_memory"]
    note = fake.chats[1]["messages"][-1]["content"]
    assert "could not be read" in note
    assert "recall_memory, store_memory, recall, get_history" in note
    assert PEANUTS not in json.dumps(fake.chats[1]["messages"]), "what the model wrote is data, and has no delimiters"
    turns = await turns_of_all(user)
    fake.replies = [says(text), says(text)]
    problem(await user.post(ASK, json={"query": "Remember it."}), 502, "agent_call_invalid")
    assert await turns_of_all(user) == turns
    assert await memories(user) == [PEANUTS]


async def test_the_note_on_a_call_that_could_not_be_read_is_not_repeated(user: Client, fake: FakeChat) -> None:
    fake.replies = [says(BROKEN), says(STORE), says("I will remember that.")]
    await ask(user, "Remember it.")
    noted = ["could not be read" in json.dumps(chat["messages"]) for chat in fake.chats]
    assert noted == [False, True, False], "after a call that was run the note would be wrong"


@pytest.mark.parametrize("content", [PEANUTS, 'Zoë said: "no peanuts"'])
async def test_a_call_that_is_repeated_from_a_text_is_not_run(user: Client, fake: FakeChat, content: str) -> None:
    call = {"name": "store_memory", "arguments": {"content": content}}
    text = f"```json\n{json.dumps(call)}\n```"
    quoted = f"Please explain {json.dumps(call, ensure_ascii=False, indent=1)} to me."
    fake.replies = [says(text), says("It would store a memory.")]
    assert (await ask(user, quoted))["tools_used"] == []
    conversation = await user.conversation()
    await user.append(conversation, quoted)
    fake.replies = [says(text), says("It would store a memory.")]
    answer = await user.post(ASK, json={"query": "What did I paste?", "conversation_id": conversation})
    assert (answer.json()["response"], answer.json()["tools_used"]) == ("It would store a memory.", [])
    assert await memories(user) == []


async def test_the_arguments_of_a_call_in_text_are_checked_like_any_other(user: Client, fake: FakeChat) -> None:
    wrong = json.dumps([{"name": "store_memory", "arguments": {"text": "x"}}, {"name": "recall", "arguments": [1]}])
    fake.replies = [says(wrong), says("I will remember that.")]
    answer = await ask(user, "Remember it.")
    results = [message["content"] for message in fake.chats[1]["messages"] if message["role"] == "tool"]
    assert ["Error" in result for result in results] == [True, True]
    assert answer["response"] == f"I will remember that.\n\n{NOT_STORED}", "the model cannot claim what did not happen"
    assert await memories(user) == []


async def test_calls_in_text_count_as_rounds(user: Client, fake: FakeChat) -> None:
    fake.reply = says(json.dumps({"name": "recall_memory", "arguments": {"query": "x"}}))
    answer = await ask(user, "Everything, please.")
    assert (answer["response"], answer["tools_used"]) == (UNFINISHED, ["recall_memory"])
    assert len(fake.chats) == 6


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Melanie", "allergies": ["peanuts"]}',
        '[{"name": "Melanie"}, {"name": "Caroline", "parameters": 3}]',
        '```json\n{"name": "Melanie", "age": 30}\n```',
        f"You wrote: {STORE}",
        f"Example:\n```json\n{STORE}\n```\nThat is what you sent.",
        '{"model": {"name": "resnet", "parameters": {"rate": 0.1}}}',
    ],
)
async def test_json_that_is_no_call_and_a_quoted_call_stay_answers(user: Client, fake: FakeChat, text: str) -> None:
    fake.reply = says(text)
    assert (await ask(user, "As JSON, please."))["response"] == text
    assert len(fake.chats) == 1


# generated answers


async def generate(user: Client, **body: Any) -> dict[str, Any]:
    response = await user.post("/v1/generate", json={"messages": [QUESTION], "parameters": {"tools": [SEARCH]}} | body)
    assert response.status_code == 200, response.text
    return response.json()


def calls_of(turn: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in turn["tool_calls"]]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


@pytest.mark.parametrize("text", [SEARCHES, f"```json\n{SEARCHES}\n```", f"<tool_call>{SEARCHES}</tool_call>"])
async def test_a_generated_call_of_an_offered_tool_is_a_call(user: Client, fake: FakeChat, text: str) -> None:
    fake.reply = says(text)
    answer = await generate(user)
    turn = answer["turns"][-1]
    assert (answer["response"], turn["content"], calls_of(turn)) == ("", None, [("search", QUERY)])
    assert (turn["metadata"][TEXT_CALL], turn["metadata"]["finish_reason"]) == ("read", "tool_calls")
    sent = {"role": "assistant", "content": None, "tool_calls": turn["tool_calls"]}
    result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "Peanuts."}
    fake.reply = says("Peanuts.")
    more = await generate(user, conversation_id=answer["conversation_id"], messages=[QUESTION, sent, result])
    assert [turn["role"] for turn in more["turns"]] == ["tool", "assistant"], "the client's history is the stored one"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"tools": [{"type": "function", "function": {"name": "other"}}]},
        {"tools": [SEARCH], "tool_choice": "none"},
        {"tools": [SEARCH], "response_format": {"type": "json_object"}},
    ],
)
async def test_without_an_offer_of_the_tool_the_text_stays_as_it_is(
    user: Client, fake: FakeChat, parameters: dict[str, Any]
) -> None:
    fake.reply = says(SEARCHES)
    answer = await generate(user, parameters=parameters)
    assert answer["response"] == answer["turns"][-1]["content"] == SEARCHES
    assert "tool_calls" not in answer["turns"][-1] or not answer["turns"][-1]["tool_calls"]


async def test_a_generated_call_that_cannot_be_read_is_marked(user: Client, fake: FakeChat) -> None:
    fake.reply = says(SEARCHES[:-1])
    turn = (await generate(user))["turns"][-1]
    assert (turn["content"], turn["metadata"][TEXT_CALL]) == (SEARCHES[:-1], "unreadable")
    fake.reply = says('{"name": "Melanie"}')
    assert TEXT_CALL not in (await generate(user))["turns"][-1]["metadata"]


async def test_openais_client_gets_the_call_and_in_a_stream_after_the_text(
    user: Client, ai: openai.AsyncOpenAI, fake: FakeChat
) -> None:
    fake.reply = says(SEARCHES)
    conversation = await user.conversation()
    request: Any = {
        "model": CHAT_MODEL,
        "messages": [QUESTION],
        "tools": [SEARCH],
        "extra_headers": {"X-Conversation-Id": conversation},
    }
    choice = (await ai.chat.completions.create(**request)).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [QUERY]
    assert calls_of((await user.history(conversation))[-1]) == [("search", QUERY)]

    request["extra_headers"] = {"X-Conversation-Id": (conversation := await user.conversation())}
    async with ai.chat.completions.stream(**request) as stream:
        message = (await stream.get_final_completion()).choices[0]
    assert (message.finish_reason, message.message.content) == ("tool_calls", SEARCHES)
    called = message.message.tool_calls[0]
    assert (called.function.name, json.loads(called.function.arguments)) == ("search", QUERY)
    stored = (await user.history(conversation))[-1]
    assert (stored["content"], calls_of(stored), stored["metadata"][TEXT_CALL]) == (
        SEARCHES,
        [("search", QUERY)],
        "read",
    )
    assert stored["tool_calls"][0]["id"] == called.id
    told = message.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
    told["tool_calls"] = [
        {"id": called.id, "type": "function", "function": {"name": "search", "arguments": called.function.arguments}}
    ]
    result = {"role": "tool", "tool_call_id": called.id, "content": "Peanuts."}
    fake.reply = says("Peanuts.")
    await ai.chat.completions.create(**request | {"messages": [QUESTION, told, result]})
    assert [turn["role"] for turn in await user.history(conversation)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_has_the_call_as_an_item(ai: openai.AsyncOpenAI, fake: FakeChat, *, store: bool) -> None:
    fake.reply = says(SEARCHES)
    tools: Any = [{"type": "function", "name": "search", "parameters": {"type": "object"}}]
    made: Any = await ai.responses.create(model=CHAT_MODEL, input="Which?", tools=tools, store=store)
    assert [(item.type, item.name, json.loads(item.arguments)) for item in made.output] == [
        ("function_call", "search", QUERY)
    ]
    stream: Any = await ai.responses.create(model=CHAT_MODEL, input="Which?", tools=tools, store=store, stream=True)
    events = [event async for event in stream]
    assert [item.type for item in events[-1].response.output] == ["message", "function_call"]
    assert json.loads(events[-1].response.output[1].arguments) == QUERY
    if store:
        kept: Any = await ai.responses.retrieve(events[-1].response.id)
        assert [item.type for item in kept.output] == ["message", "function_call"]


async def test_without_a_conversation_the_answer_passes_unchanged(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    fake.reply = Reply(SEARCHES)
    choice = (await ai.chat.completions.create(model=CHAT_MODEL, messages=[QUESTION], tools=[SEARCH])).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", SEARCHES)


async def test_a_text_beside_a_real_call_is_only_text(user: Client, fake: FakeChat) -> None:
    fake.reply = calls(("search", QUERY))
    turn = (await generate(user))["turns"][-1]
    assert (calls_of(turn), TEXT_CALL in turn["metadata"]) == ([("search", QUERY)], False)
