"""Odd exports of other systems: one odd chat is refused with its name and place, and the rest keeps its times."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.api.test_imports import imported
from tests.api.test_mcp_arguments import caller_of
from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on


def node(name: str, parent: str | None, role: str, text: str, at: float = 1.7e9, **more: Any) -> dict[str, Any]:
    message = {"id": name, "author": {"role": role}, "create_time": at, "recipient": "all", "metadata": {}}
    message["content"] = {"content_type": "text", "parts": [text]}
    return {"id": name, "parent": parent, "children": [], "message": message | more}


def chat(name: str, at: float = 1.7e9, answer: str = "Nice name!") -> dict[str, Any]:
    nodes = [
        {"id": "r", "message": None, "parent": None, "children": []},
        node("a", "r", "user", f"My parrot of {name} is called Kiwi.", at),
        node("b", "a", "assistant", answer, at + 1),
    ]
    return {
        "id": name, "conversation_id": name, "title": f"about {name}", "create_time": at, "update_time": at + 1,
        "current_node": "b", "mapping": {one["id"]: one for one in nodes},
    }  # fmt: skip


async def listed(client: Client) -> dict[str, dict[str, Any]]:
    found = (await client.get("/v1/conversations", params={"limit": 200})).json()["data"]
    return {one["external_id"]: one for one in found}


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    odd = chat("odd")
    change(odd)
    return odd


def message_of(odd: dict[str, Any], name: str = "b") -> dict[str, Any]:
    return odd["mapping"][name]["message"]


ODD_AND_KEPT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "NUL in a text": lambda odd: message_of(odd)["content"].update(parts=["binary \x00 output"]),
    "half a surrogate": lambda odd: message_of(odd)["content"].update(parts=["half \ud83d pair"]),
    "NUL in an id": lambda odd: odd["mapping"].update({"b\x00": odd["mapping"].pop("b")}),
    "NUL in the title": lambda odd: odd.update(title="a\x00b"),
    "a parent that is not there": lambda odd: odd["mapping"]["b"].update(parent="nobody"),
    "a child that is not there": lambda odd: odd["mapping"]["a"].update(children=["nobody", "b"]),
    "a current message that is not there": lambda odd: odd.update(current_node="nobody"),
    "a role that nobody has": lambda odd: message_of(odd).update(author={"role": "critic"}),
    "a time before 1970": lambda odd: message_of(odd).update(create_time=-1),
    "a time in milliseconds": lambda odd: message_of(odd).update(create_time=1.7e12),
    "a time that is text": lambda odd: message_of(odd).update(create_time="soon"),
    "a time that is huge": lambda odd: message_of(odd).update(create_time=10**400),
    "a huge number": lambda odd: message_of(odd)["metadata"].update(n=2**70),
    "a circle": lambda odd: odd["mapping"]["a"].update(parent="b"),
    "itself as parent": lambda odd: odd["mapping"]["b"].update(parent="b"),
}
ODD_AND_EMPTY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an empty mapping": lambda odd: odd.update(mapping={}),
    "only a root": lambda odd: odd.update(mapping={"r": {"id": "r", "message": None, "parent": None, "children": []}}),
}
ODD_AND_LEFT_OUT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no author": lambda odd: message_of(odd).pop("author"),
    "a node that is no object": lambda odd: odd["mapping"].update(b="text"),
    "a message that is a list": lambda odd: odd["mapping"]["b"].update(message=[1]),
    "a content that is text": lambda odd: message_of(odd).update(content="text"),
    "parts that nest too deeply": lambda odd: message_of(odd)["content"].update(parts=[{"x": deep(80)}]),
}
ODD_AND_REFUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no mapping": lambda odd: odd.pop("mapping"),
    "a mapping that is a list": lambda odd: odd.update(mapping=[1]),
    "an id that is a list": lambda odd: odd.update(conversation_id=[1], id=[1]),
}


def deep(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("case", ODD_AND_KEPT)
async def test_what_is_odd_in_a_chat_and_can_be_read_is_stored_with_the_rest(
    service: Service, client: Client, case: str
) -> None:
    body = json.dumps([chat("good-1"), changed(ODD_AND_KEPT[case]), chat("good-2")]).encode()
    result = await imported(service, client, body, source="chatgpt")
    assert result["problems"] == []
    assert {"good-1", "odd", "good-2"} <= {*await listed(client)}
    assert result["records"]["turn"] == 6


@pytest.mark.parametrize("case", ODD_AND_EMPTY)
async def test_a_chat_without_messages_is_a_conversation_without_turns(
    service: Service, client: Client, case: str
) -> None:
    body = json.dumps([chat("good-1"), changed(ODD_AND_EMPTY[case]), chat("good-2")]).encode()
    result = await imported(service, client, body, source="chatgpt")
    assert (result["problems"], result["records"]["turn"]) == ([], 4)
    assert (await listed(client))["odd"]["created_at"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("case", ODD_AND_LEFT_OUT)
async def test_a_message_that_cannot_be_read_is_named_and_the_rest_of_its_chat_is_stored(
    service: Service, client: Client, case: str
) -> None:
    body = json.dumps([chat("good-1"), changed(ODD_AND_LEFT_OUT[case]), chat("good-2")]).encode()
    result = await imported(service, client, body, source="chatgpt")
    assert {*await listed(client)} == {"good-1", "odd", "good-2"}
    [wrong] = result["problems"]
    assert (wrong["type"], wrong["conversation"]) == ("turn", "odd")
    assert wrong["errors"][0]["pointer"].startswith("/1/mapping/b") or wrong["id"] == "b"
    assert (result["records"]["turn"], result["problem_count"]) == (5, 1)


@pytest.mark.parametrize("case", ODD_AND_REFUSED)
async def test_a_chat_that_cannot_be_read_is_refused_by_its_name_and_place(
    service: Service, client: Client, case: str
) -> None:
    body = json.dumps([chat("good-1"), changed(ODD_AND_REFUSED[case]), chat("good-2")]).encode()
    result = await imported(service, client, body, source="chatgpt")
    assert {*await listed(client)} == {"good-1", "good-2"}
    [wrong] = result["problems"]
    assert (wrong["type"], wrong["id"] in {"odd", None}) == ("conversation", True)
    assert wrong["errors"][0]["pointer"].startswith("/1")
    assert "Kiwi" not in json.dumps(wrong)
    assert result["conversations"]["refused"] == 1


async def test_the_same_chat_twice_is_stored_once(service: Service, client: Client) -> None:
    longer = chat("twice")
    longer["mapping"]["c"] = node("c", "b", "user", "And a cat", 1.7e9 + 5)
    longer["current_node"] = "c"
    body = json.dumps([chat("twice"), chat("good"), longer, chat("twice")]).encode()
    result = await imported(service, client, body, source="chatgpt")
    assert result["problems"] == []
    found = await listed(client)
    assert [one["content"] for one in await client.history(found["twice"]["id"])][-1] == "And a cat"
    assert result["records"] | {"turn": 5, "conversation": 2} == result["records"]
    other = chat("twice")
    other["mapping"] = {f"x{name}": one for name, one in other["mapping"].items()}
    other["current_node"] = "xb"
    for one in other["mapping"].values():
        one["parent"] = None if one["parent"] is None else f"x{one['parent']}"
    result = await imported(service, client, json.dumps([chat("twice"), other]).encode(), source="chatgpt")
    assert [(one["id"], one["errors"][0]["pointer"]) for one in result["problems"]] == [("twice", "/1")]


@pytest.mark.parametrize("memory", ["binary \x00 output", "half \udc00 pair"])
async def test_one_odd_memory_of_mem0_costs_no_other(service: Service, client: Client, memory: str) -> None:
    listed_memories = [
        {"id": f"m-{number}", "memory": f"Mia likes tea {number}", "user_id": "mia"} for number in range(5)
    ]
    listed_memories[2]["memory"] = memory
    del listed_memories[3]["memory"]
    listed_memories[4]["memory"] = "x" * 900_000
    result = await imported(service, client, json.dumps(listed_memories).encode(), source="mem0")
    assert result["records"]["memory"] == 3
    assert [(one["type"], one["id"]) for one in result["problems"]] == [("memory", "m-4"), ("memory", "m-3")]
    assert result["problems"][1]["errors"][0]["pointer"] == "/3/memory"


# the bytes of a file


BODY = json.dumps([chat("good-1"), chat("good-2", answer="Käse für Zoë 🦜")], ensure_ascii=False)


def zipped(**files: str | bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"export/{name}.json", text)
    return stream.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        BODY.encode("utf-8-sig"),
        BODY.encode("utf-16"),
        BODY.encode("utf-16-le"),
        BODY.encode("utf-16-be"),
        BODY.encode("utf-32"),
        BODY.replace("🦜", "").encode("latin-1"),
        "\n".join(json.dumps(one) for one in json.loads(BODY)).encode(),
        json.dumps(BODY).encode(),
        json.dumps({"conversations": json.loads(BODY)}).encode(),
        gzip.compress(BODY.encode()),
        zipped(conversations=BODY, user="{}"),
        zipped(**{f"conversations-00{one}": json.dumps([chat(f"good-{one}")]) for one in (1, 2)}),
    ],
    ids=[
        "BOM", "UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "Latin-1", "lines", "JSON in a text", "in an object", "gzip",
        "ZIP", "ZIP of parts",
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", ["chatgpt", "auto"])
async def test_a_file_is_read_in_its_encoding(service: Service, client: Client, body: bytes, source: str) -> None:
    result = await imported(service, client, body, source=source)
    assert result["problems"] == []
    found = await listed(client)
    assert {*found} == {"good-1", "good-2"}
    if b"K\xe4se" in body or "Käse".encode() in body:
        assert (await client.history(found["good-2"]["id"]))[1]["content"].startswith("Käse für Zoë")


async def test_a_list_that_is_cut_off_gives_all_chats_before_the_cut_and_names_the_cut_one(
    service: Service, client: Client
) -> None:
    body = json.dumps([chat("good-1"), chat("good-2"), chat("cut")])
    result = await imported(service, client, body[:-200].encode(), source="chatgpt")
    assert {*await listed(client)} == {"good-1", "good-2"}
    [wrong] = result["problems"]
    assert (wrong["type"], wrong["id"], wrong["errors"]) == (
        "conversation", "cut", [{"pointer": "/2", "detail": "the file ends inside of it"}],
    )  # fmt: skip


async def test_a_chat_that_is_not_json_costs_no_chat_after_it(service: Service, client: Client) -> None:
    for number, broken in enumerate(('{"id": "broken", oops}', '{"id": "broken", "mapping": {"a": {}', "{]")):
        first, last = (json.dumps(chat(f"{name}-{number}")) for name in ("first", "last"))
        result = await imported(service, client, f"[{first}, {broken}, {last}]".encode(), source="chatgpt")
        assert {f"first-{number}", f"last-{number}"} <= {*await listed(client)}, broken
        assert [one["errors"][0]["pointer"] for one in result["problems"]] == ["/1"], broken


async def test_a_file_in_which_nothing_can_be_read_is_refused_at_once(client: Client) -> None:
    for body, source in (
        (b"hello", "chatgpt"),
        (b"", "mem0"),
        (b"[", "auto"),
        (b'{"a": 1}', "auto"),
        (b"PK\x03\x04x", "zep"),
    ):
        answer = await client.post("/v1/import", content=body, params={"source": source})
        assert answer.status_code in {400, 422}, body
    body = json.dumps([{"id": "m-1", "memory": 7}])
    answer = await client.post("/v1/import", content=body, params={"source": "mem0"})
    wrong = problem(answer, 422, "import_unreadable")["errors"]
    assert [(one["pointer"], one["detail"]) for one in wrong] == [("/0/memory", "memory m-1: a text is expected")]
    answer = await client.post("/v1/import", content=json.dumps([chat("a")]), params={"source": "letta"})
    assert "a document of chatgpt, not of letta" in problem(answer, 422, "import_unreadable")["detail"]


# messages that the server refuses


TOO_MUCH: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a text over the limit": (lambda odd: message_of(odd)["content"].update(parts=["x" * (2 * 2**20)]), "/content"),
    "a part that nests too deeply": (lambda odd: message_of(odd)["content"].update(parts=[{"x": deep(40)}]), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", TOO_MUCH)
async def test_a_message_over_a_limit_is_named_and_the_rest_of_its_chat_is_stored(
    service: Service, client: Client, case: str
) -> None:
    change, pointer = TOO_MUCH[case]
    odd = changed(change)
    odd["mapping"]["c"] = node("c", "b", "user", "And then?", 1.7e9 + 2)
    odd["current_node"] = "c"
    result = await imported(service, client, json.dumps([odd, chat("good")]).encode(), source="chatgpt")
    [wrong] = result["problems"]
    assert (wrong["type"], wrong["id"]) == ("turn", "b")
    assert wrong["errors"][0]["pointer"].startswith(pointer)
    assert (result["records"]["conversation"], result["records"]["turn"]) == (2, 4)
    found = await listed(client)
    texts = [turn["content"] for turn in await client.history(found["odd"]["id"])]
    assert texts == ["My parrot of odd is called Kiwi.", "And then?"]
    again = await imported(service, client, json.dumps([odd]).encode(), source="chatgpt")
    assert (again["problem_count"], again["existing_records"], again["records"]["turn"]) == (1, 3, 0)


async def test_an_answer_over_a_limit_does_not_replace_the_one_before_it(service: Service, client: Client) -> None:
    odd = chat("odd")
    odd["mapping"]["b2"] = node("b2", "a", "assistant", "y" * (2 * 2**20), 1.7e9 + 2)
    odd["mapping"]["b3"] = node("b3", "a", "assistant", "The newest name.", 1.7e9 + 3)
    odd["mapping"]["a"]["children"] = ["b", "b2", "b3"]
    odd["current_node"] = "b2"
    result = await imported(service, client, json.dumps([odd]).encode(), source="chatgpt")
    [wrong] = result["problems"]
    assert (wrong["type"], wrong["id"], wrong["conversation"]) == ("turn", "b2", "odd")
    history = await client.history((await listed(client))["odd"]["id"])
    assert [turn["content"] for turn in history] == ["My parrot of odd is called Kiwi.", "The newest name."]


async def test_a_chat_of_which_no_message_can_be_stored_is_refused(service: Service, client: Client) -> None:
    odd = chat("odd")
    for name in ("a", "b"):
        message_of(odd, name)["content"].update(parts=["x" * (2 * 2**20)])
    result = await imported(service, client, json.dumps([odd, chat("good")]).encode(), source="chatgpt")
    assert [(wrong["type"], wrong["id"]) for wrong in result["problems"]] == [("conversation", "odd")]
    assert {*await listed(client)} == {"good"}


@pytest.mark.parametrize("time", ["2999-01-01T00:00:00Z", "0001-01-01T00:00:00Z", 4_102_444_800])
async def test_a_time_in_the_future_or_without_a_year_costs_no_message(
    service: Service, client: Client, time: Any
) -> None:
    odd = chat("odd", 1.6e9)
    message_of(odd)["create_time"] = time
    late = chat("late")
    late["create_time"] = message_of(late)["create_time"] = message_of(late, "a")["create_time"] = time
    result = await imported(service, client, json.dumps([odd, late, chat("good")]).encode(), source="chatgpt")
    assert (result["problems"], result["records"]["turn"]) == ([], 6)
    found = await listed(client)
    assert found["odd"]["active_at"] == found["odd"]["created_at"] == "2020-09-13T12:26:40.000Z"
    assert found["late"]["created_at"].startswith(f"{datetime.now(UTC).year}")


async def test_a_memory_that_was_changed_or_is_of_another_owner_is_named(service: Service, client: Client) -> None:
    def file(owner: str, text: str) -> bytes:
        return json.dumps([{"id": "m-1", "memory": text, "user_id": owner}]).encode()

    await imported(service, client, file("mia", "Mia eats no peanuts"), source="mem0")
    again = await imported(service, client, file("mia", "Mia eats no peanuts"), source="mem0")
    assert (again["existing_records"], again["problem_count"]) == (1, 0)
    for owner, text in (("mia", "Mia eats peanuts"), ("eve", "Mia eats no peanuts")):
        result = await imported(service, client, file(owner, text), source="mem0")
        assert (result["existing_records"], result["records"]["memory"]) == (0, 0)
        [wrong] = result["problems"]
        assert (wrong["type"], wrong["id"], wrong["errors"][0]["pointer"]) == ("memory", "m-1", "/external_id")


async def test_all_members_of_a_gzip_file_are_read(service: Service, client: Client) -> None:
    members = [gzip.compress(json.dumps(chat(f"member-{number}")).encode() + b"\n") for number in range(3)]
    result = await imported(service, client, b"".join(members) + b"\0\0", source="auto")
    assert (result["problems"], {*await listed(client)}) == ([], {"member-0", "member-1", "member-2"})
    packed = zipped(conversations=gzip.compress(json.dumps([chat("packed")]).encode()))
    await imported(service, client, packed, source="auto")
    assert "packed" in await listed(client)


async def test_a_member_that_nests_too_deeply_is_named_without_the_names_in_it(
    service: Service, client: Client
) -> None:
    odd = changed(lambda odd: message_of(odd)["content"].update(parts=[{"private": {"names": deep(40)}}]))
    message_of(odd, "a")["metadata"]["extra"] = {"deep": deep(60)}
    result = await imported(service, client, json.dumps([odd]).encode(), source="chatgpt")
    assert "names" not in json.dumps(result["problems"])
    assert (result["problem_count"], result["records"]["turn"]) == (1, 1)


# times


async def test_an_imported_chat_has_the_times_of_its_messages_and_its_place_in_the_list(
    service: Service, client: Client
) -> None:
    await client.append(await client.conversation(), {"role": "user", "content": "today"})
    body = json.dumps([chat("may-2025", 1748736000), chat("june-2023", 1685577600), chat("2024", 1720000000)]).encode()
    await imported(service, client, body, source="chatgpt")
    found = (await client.get("/v1/conversations")).json()["data"]
    assert [one["external_id"] for one in found] == [None, "may-2025", "2024", "june-2023"]
    assert [one["created_at"][:10] for one in found[1:]] == ["2025-06-01", "2024-07-03", "2023-06-01"]
    assert found[3]["active_at"] == "2023-06-01T00:00:01.000Z"
    for name in ("created_before", "active_before"):
        where = {name: "2024-01-01T00:00:00Z"}
        old = (await client.post("/v1/conversations/search", json=where)).json()["data"]
        assert [one["external_id"] for one in old] == ["june-2023"], name
    again = await imported(service, client, body, source="chatgpt")
    assert again["existing_records"] == again["skipped_records"] == 9
    assert (await client.get("/v1/conversations")).json()["data"] == found
    await client.append(found[3]["id"], {"role": "user", "content": "go on"})
    first = (await client.get("/v1/conversations")).json()["data"][0]
    assert (first["external_id"], first["created_at"][:4]) == ("june-2023", "2023"), "an ordinary append is last"


async def test_a_newer_export_moves_a_chat_to_its_newest_message_only(service: Service, client: Client) -> None:
    await imported(service, client, json.dumps([chat("old", 1685577600)]).encode(), source="chatgpt")
    longer = chat("old", 1685577600)
    longer["mapping"]["c"] = node("c", "b", "user", "And a cat", 1720000000)
    longer["current_node"] = "c"
    await imported(service, client, json.dumps([longer]).encode(), source="chatgpt")
    found = (await listed(client))["old"]
    assert (found["created_at"][:10], found["active_at"][:10]) == ("2023-06-01", "2024-07-03")
    assert found["updated_at"][:4] != "2024", "expiry counts from the import"


async def test_threads_of_zep_have_the_times_of_their_messages(service: Service, client: Client) -> None:
    message = {"uuid": "m", "role": "user", "content": "hi", "created_at": "2023-05-01T10:00:00Z"}
    threads = {"threads": [{"thread_id": "t-1", "messages": [message]}, {"thread_id": "t-2", "messages": []}]}
    threads["threads"][1]["created_at"] = "2022-05-01T10:00:00Z"
    await imported(service, client, json.dumps(threads).encode(), source="zep")
    found = await listed(client)
    assert found["t-1"]["created_at"] == found["t-1"]["active_at"] == "2023-05-01T10:00:00.000Z"
    assert found["t-2"]["created_at"] == found["t-2"]["active_at"] == "2022-05-01T10:00:00.000Z"


async def test_reasoning_and_hidden_messages_are_kept_and_shown_to_no_model(service: Service, client: Client) -> None:
    odd = chat("hidden")
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "secret plan"}]}
    context = {"content_type": "user_editable_context", "user_profile": "secret profile"}
    extra = [
        node("s", "r", "system", "secret system"),
        node("u", "s", "user", "", content=context, metadata={"is_visually_hidden_from_conversation": True}),
    ]
    for one in (*extra, node("t", "a", "assistant", "", content=thoughts, metadata={"model_slug": "o3"})):
        odd["mapping"][one["id"]] = one
    odd["mapping"]["a"]["parent"] = "u"
    odd["mapping"]["b"]["parent"] = "t"
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://f-1", "width": 10}
    spoken = {"content_type": "audio_transcription", "text": "words that were spoken"}
    message_of(odd, "a")["content"] = {"content_type": "multimodal_text", "parts": [image, spoken]}
    message_of(odd, "a")["metadata"]["attachments"] = [{"id": "f-1", "name": "kiwi.png"}]
    result = await imported(service, client, json.dumps([odd]).encode(), source="chatgpt")
    assert (result["problems"], result["records"]["turn"]) == ([], 5)
    conversation = (await listed(client))["hidden"]["id"]
    stored = json.dumps(await client.history(conversation))
    for text in ("secret plan", "secret profile", "secret system", "kiwi.png", "file-service://f-1", "o3"):
        assert text in stored, text
    for form in ("openai", "anthropic", "openai_responses", "workers_ai"):
        body = {"token_budget": 4000, "format": form}
        answer = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
        shown = json.dumps(answer["messages"]) + str(answer.get("system"))
        assert "secret" not in shown, form
        assert "words that were spoken" in shown, form
        assert "Nice name!" in shown, form
    assert [one["text"] for one in await client.recall(conversation, "spoken words", mode="text")]
    assert not await client.recall(conversation, "secret plan profile", mode="text")


# appends of a history


def said(text: str, at: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "occurred_at": at}


async def test_an_append_of_a_history_keeps_the_times_at_which_it_was_said(client: Client) -> None:
    now = await client.conversation()
    await client.append(now, {"role": "user", "content": "today"})
    old, plain = await client.conversation(), await client.conversation()
    path = f"/v1/conversations/{old}/turns"
    for year, month in ((2023, 3), (2023, 1), (2023, 9)):
        body = {"turns": [said(f"in {month}", f"{year}-0{month}-01T10:00:00Z")], "import": True}
        assert (await client.post(path, json=body)).is_success
    await client.append(plain, said("the same without the member", "2023-01-01T10:00:00Z"))
    found = {one["id"]: one for one in (await client.get("/v1/conversations")).json()["data"]}
    assert [*found] == [plain, now, old]
    assert (found[old]["created_at"], found[old]["active_at"]) == (
        "2023-01-01T10:00:00.000Z", "2023-09-01T10:00:00.000Z",
    )  # fmt: skip
    assert found[old]["updated_at"] > found[now]["created_at"], "expiry counts from the append"
    where = {"active_before": "2024-01-01T00:00:00Z"}
    assert [one["id"] for one in (await client.post("/v1/conversations/search", json=where)).json()["data"]] == [old]
    await client.append(old, {"role": "user", "content": "and now"})
    after = {"turns": [said("earlier still", "2022-01-01T10:00:00Z")], "import": True}
    assert (await client.post(path, json=after)).is_success
    first = (await client.get("/v1/conversations")).json()["data"][0]
    assert (first["id"], first["created_at"][:4]) == (old, "2022"), "active_at never goes back"
    wrong = {"turns": [said("x", "2022-01-01T10:00:00Z")], "import": "yes"}
    problem(await client.post(path, json=wrong), 422, "invalid_request")


async def test_a_frame_appends_a_history_with_its_times(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    async with (
        serving(service.app, service.settings) as port,
        socket_on(port, conversation, client.key) as socket,
    ):
        answer = await socket.ask("append", turns=[said("long ago", "2021-05-01T10:00:00Z")], **{"import": True})
        assert answer["type"] == "ack"
        wrong = await socket.ask("append", turns=[said("x", "2021-05-01T10:00:00Z")], **{"import": "yes"})
        assert wrong["type"] == "error"
    stored = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert stored["active_at"] == stored["created_at"] == "2021-05-01T10:00:00.000Z"


FAULTS: dict[str, Callable[[str], str]] = {
    "a quote is missing in the first chat": lambda text: text.replace('"odd"', '"odd', 1),
    "a bracket is missing in the first chat": lambda text: text.replace("}", "", 1),
    "a bracket too many in the first chat": lambda text: text.replace("{", "{{", 1),
    "a text without an end before the first chat": lambda text: text.replace("[", '["half, ', 1),
    "a list without an end before the first chat": lambda text: text.replace("[", "[[1, 2, ", 1),
    "a bracket that ends the list too early": lambda text: text.replace('{"id": "good-1"', ']{"id": "good-1"', 1),
}


@pytest.mark.parametrize("form", ["{}", '{{"conversations": {}, "version": 1}}'], ids=["list", "member"])
@pytest.mark.parametrize("case", FAULTS)
async def test_a_fault_in_the_first_chat_costs_no_chat_after_it(
    service: Service, client: Client, case: str, form: str
) -> None:
    text = FAULTS[case](json.dumps([chat("odd"), chat("good-1"), chat("good-2")]))
    body = form.format(text)
    result = await imported(service, client, body.encode(), source="chatgpt")
    assert {"good-1", "good-2"} <= {*await listed(client)}
    assert result["problem_count"] >= 1
    assert result["records"]["turn"] in {4, 6}


@pytest.mark.parametrize("levels", [25, 31, 40])
async def test_metadata_that_nest_too_deeply_cost_no_chat_and_a_message_that_does_is_named(
    service: Service, client: Client, levels: int
) -> None:
    about, said_deep = chat("about"), chat("said")
    about["is_starred"] = deep(levels)
    message_of(said_deep)["content"].update(parts=[{"x": deep(levels)}])
    result = await imported(service, client, json.dumps([about, said_deep, chat("good")]).encode(), source="chatgpt")
    assert {*await listed(client)} == {"about", "said", "good"}
    assert [(one["type"], one["id"]) for one in result["problems"]] == ([] if levels == 25 else [("turn", "b")])


async def test_a_line_that_is_no_object_is_named_by_its_place(service: Service, client: Client) -> None:
    body = f"{json.dumps(chat('good'))}\n-1\n".encode()
    result = await imported(service, client, body, source="chatgpt")
    assert {*await listed(client)} == {"good"}
    assert result["problems"][0]["errors"][0]["pointer"] == "/1"


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be"])
async def test_a_document_in_a_text_whose_end_is_missing_is_read_up_to_there(
    service: Service, client: Client, encoding: str
) -> None:
    body = json.dumps(json.dumps([chat("good-1"), chat("good-2"), chat("odd")]))[:-60]
    result = await imported(service, client, body.encode(encoding), source="chatgpt")
    assert {*await listed(client)} == {"good-1", "good-2"}
    assert result["conversations"]["refused"] == 1


async def test_the_tool_appends_a_history_with_its_times(service: Service, client: Client) -> None:
    arguments = {"external_id": "by-tool", "turns": [said("long ago", "2021-05-01T10:00:00Z")], "import": True}
    async with serving(service.app, service.settings) as port, caller_of(client, port) as run:
        await run("append_turns", **arguments)
    found = (await listed(client))["by-tool"]
    assert found["active_at"] == found["created_at"] == "2021-05-01T10:00:00.000Z"


# who gets what


async def test_the_same_export_in_two_tenants_and_of_two_owners_stays_apart(
    service: Service, client: Client, other: Client
) -> None:
    chats: list[dict[str, Any]] = []
    for user in ("ana", "ben"):
        message = {"id": "m", "role": "user", "content": f"I am {user}"}
        history = {"currentId": "m", "messages": {"m": message}}
        chats.append({"id": f"ow-{user}", "user_id": user, "title": "t", "chat": {"history": history}})
    for tenant in (client, other):
        result = await imported(service, tenant, json.dumps(chats).encode(), source="auto")
        assert (result["problems"], result["records"]["turn"]) == ([], 2)
    for tenant in (client, other):
        found = await listed(tenant)
        assert {name: one["owner"] for name, one in found.items()} == {"ow-ana": "ana", "ow-ben": "ben"}
        for name, one in found.items():
            assert [turn["content"] for turn in await tenant.history(one["id"])] == [f"I am {name[3:]}"]
    ids = [{one["id"] for one in (await listed(tenant)).values()} for tenant in (client, other)]
    assert ids[0].isdisjoint(ids[1])


async def test_an_imported_conversation_with_a_time_to_live_expires_after_the_import(
    service: Service, client: Client
) -> None:
    await imported(service, client, json.dumps([chat("old", 1685577600)]).encode(), source="chatgpt")
    old = (await listed(client))["old"]
    await client.patch(f"/v1/conversations/{old['id']}", json={"ttl_s": 3600})
    later = chat("old", 1685577600)
    later["mapping"]["c"] = node("c", "b", "user", "more", 1685577700)
    later["current_node"] = "c"
    await imported(service, client, json.dumps([later]).encode(), source="chatgpt")
    await service.run_jobs()
    found = (await listed(client))["old"]
    assert found["expires_at"] > found["updated_at"] > "2024"
