"""Exports of other systems become records: what is kept, what is refused and where, and that it is done alike twice."""

import copy
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import Invalid
from app.formats import service as formats
from app.formats.parts import parse_parts, to_text
from app.formats.schemas import Format
from app.transfer.importers.service import ForeignSystem, convert, convert_file, detect, read_document
from app.transfer.lines import ExportDigest
from app.transfer.records import RECORD_LINE

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).parents[2]


def sample(system: str) -> Any:
    return json.loads((SAMPLES / f"{system}.json").read_text())


def records(system: str, document: Any = None) -> list[dict[str, Any]]:
    return list(convert(ForeignSystem(system), sample(system) if document is None else document))


def turns(system: str, document: Any = None) -> dict[str, dict[str, Any]]:
    return {one["external_id"]: one for one in records(system, document) if one["type"] == "turn"}


def refusals(system: str, document: Any) -> list[dict[str, Any]]:
    return [one for one in records(system, document) if one["type"] == "refused"]


def refused(system: str, document: Any) -> str:
    """The place of the one thing that was not read: the document itself, or one of its objects."""
    try:
        (one,) = refusals(system, document)
    except Invalid as error:
        (field,) = error.fields
        assert field.detail
        return field.pointer
    assert one["detail"]
    return one["pointer"]


def attempt(system: str, document: Any) -> tuple[list[dict[str, Any]] | None, Invalid | None]:
    """The records, or the error; any error of another type ends the test."""
    try:
        return records(system, document), None
    except Invalid as error:
        return None, error


def test_each_system_has_a_sample_and_each_sample_a_system() -> None:
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(ForeignSystem)


@pytest.mark.parametrize("system", ForeignSystem)
def test_every_record_is_valid_and_the_same_document_gives_the_same_bytes(system: ForeignSystem) -> None:
    at = "2026-01-05T00:00:00.000Z"
    first, again = (list(convert_file(system, sample(system), created_at=at)) for _ in range(2))
    assert first == again
    header, *lines, trailer = (json.loads(line) for line in first)
    assert (header["scope"], header["source"]) == ({"kind": "foreign"}, system.value)
    digest = ExportDigest()
    for line, raw in zip(lines, first[1:-1], strict=True):
        RECORD_LINE.validate_python(line)
        assert line["type"] != "turn" or line["external_id"]
        assert not {"id", "seq", "rev", "content_hash"} & line.keys()
        digest.add(line["type"], raw.rstrip(b"\n"))
    assert digest.trailer() == trailer


@pytest.mark.parametrize("system", ForeignSystem)
def test_no_word_of_a_sample_is_lost(system: ForeignSystem) -> None:
    """Texts that people and models wrote; of a fact of Zep only its three parts are kept."""
    written = json.dumps(records(system), ensure_ascii=False)
    for text in words_of(sample(system)):
        assert json.dumps(text, ensure_ascii=False)[1:-1] in written, text


def words_of(value: Any, name: str = "") -> list[str]:
    if isinstance(value, dict):
        return [one for key, member in value.items() for one in words_of(member, key)]
    if isinstance(value, list):
        return [one for member in value for one in words_of(member, name)]
    said = {
        "content",
        "text",
        "parts",
        "memory",
        "value",
        "output",
        "result",
        "arguments",
        "reasoning",
        "func_response",
    }
    return [value] if isinstance(value, str) and value and name in said else []


# ChatGPT


def test_the_current_branch_of_a_chat_is_the_conversation_and_an_edit_supersedes() -> None:
    main, *rest = [one for one in records("chatgpt") if one["type"] == "conversation"]
    assert (main["external_id"], main["title"]) == ("c-1", "Soup for Friday")
    listed = [one for one in records("chatgpt") if one["type"] == "turn"]
    assert [one["external_id"] for one in listed][:8] == ["q0", "q1", "a1", "call", "res", "a2", "q3", "a3"]
    assert listed[1]["supersedes_external_id"] == "q0"
    (branch,) = rest
    assert branch["external_id"] == "c-1#a0", "named by its first message, which stays when the branch grows"
    assert branch["metadata"]["chatgpt"] == {"branch_of": "c-1", "branch_after": "q1"}
    assert [one["external_id"] for one in listed[8:]] == ["a0", "q9", "a9"]


def test_messages_that_no_path_joins_to_the_current_one_are_conversations_of_their_own() -> None:
    document = sample("chatgpt")
    said = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["alone"]}}
    nodes = document[0]["mapping"]
    nodes["far"] = {"id": "far", "message": said, "parent": None, "children": []}
    nodes["unlisted"] = {"id": "unlisted", "message": said, "parent": "far", "children": []}
    listed = [one for one in records("chatgpt", document) if one["type"] in {"conversation", "turn"}]
    at = next(number for number, one in enumerate(listed) if one["external_id"] == "c-1#far")
    assert [one["external_id"] for one in listed[at + 1 : at + 3]] == ["far", "unlisted"]
    assert listed[at]["metadata"]["chatgpt"] == {"branch_of": "c-1"}
    nodes["far"]["parent"] = "unlisted"
    in_a_circle = [one["external_id"] for one in records("chatgpt", document) if one["type"] == "turn"]
    assert {"far", "unlisted"} <= set(in_a_circle), "a circle of parents is cut at its first message"


def test_calls_results_times_models_and_images_of_a_chat_are_kept() -> None:
    found = turns("chatgpt")
    assert found["call"]["tool_calls"] == [{"id": "call", "name": "browser", "arguments": "search('soup')"}]
    assert (found["res"]["role"], found["res"]["tool_call_id"], found["res"]["actor"]) == ("tool", "call", "browser")
    assert found["a2"]["model"] == "o3"
    assert found["q1"]["occurred_at"] == "2026-01-01T09:00:10.000Z"
    assert found["q3"]["content"][0]["asset_pointer"] == "file-service://file-1"
    assert found["q3"]["content"][1] == {"type": "text", "text": "Is this one ripe?"}


def test_a_chat_that_grew_gives_the_same_names_and_more_of_them() -> None:
    document = sample("chatgpt")
    before = {(one["type"], one["external_id"]) for one in records("chatgpt", document)}
    mapping = document[0]["mapping"]
    for after, new in (("a3", "q4"), ("a9", "q10")):
        mapping[after]["children"] = [new]
        message = {"id": new, "author": {"role": "user"}, "content": {"content_type": "text", "parts": ["And then?"]}}
        mapping[new] = {"id": new, "parent": after, "children": [], "message": message}
    document[0]["current_node"] = "q4"
    after_growth = {(one["type"], one["external_id"]) for one in records("chatgpt", document)}
    assert after_growth - before == {("turn", "q4"), ("turn", "q10")}
    assert before <= after_growth


def test_a_result_without_a_call_and_a_hidden_text_become_no_instruction() -> None:
    document = sample("chatgpt")
    document[0]["mapping"]["a2"]["message"]["author"] = {"role": "tool", "name": "memory"}
    found = turns("chatgpt", document)["a2"]
    assert (found["role"], found["actor"], found["metadata"]["chatgpt"]["role"]) == ("assistant", "memory", "tool")


def change(document: Any, path: str, value: Any) -> Any:
    changed = copy.deepcopy(document)
    at = changed
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in steps:
        at = at[step]
    at[last] = value
    return changed


@pytest.mark.parametrize(
    ("system", "path", "value", "pointer"),
    [
        ("chatgpt", "0/mapping", None, "/0/mapping"),
        ("chatgpt", "0/mapping/q1/message/author", None, "/0/mapping/q1/message/author"),
        ("chatgpt", "0/mapping/q1", "text", "/0/mapping/q1"),
        ("chatgpt", "0", "text", "/0"),
        ("mem0", "results/0/expiration_date", "soon", "/results/0/expiration_date"),
        ("zep", "edges/0/valid_at", "soon", "/edges/0/valid_at"),
        ("openai", "items/data/0/role", "wizard", "/items/data/0"),
        ("openai", "items/data/2/call_id", "other", "/items/data/3"),
        ("openai", "items/data/4/id", "msg_1", "/items/data/4"),
        ("openai", "id", None, "/id"),
        ("mem0", "results/1/id", "m-1", "/results/1"),
        ("mem0", "results/0/memory", "  ", "/results/0/memory"),
        ("zep", "threads/0/messages/1/uuid", "z-1", "/threads/0/messages/1"),
        ("zep", "edges/0/target_node_uuid", "n-9", "/edges/0/target_node_uuid"),
        ("letta", "agents/0/block_ids/0", "block-9", "/agents/0/block_ids/0"),
        ("letta", "agents/0/messages/2/tool_calls/0/function", None, "/agents/0/messages/2/tool_calls/0/function"),
        ("langgraph", "checkpoints/0/config", None, "/checkpoints/0/checkpoint"),
        ("langgraph", "checkpoints/1/config/configurable/checkpoint_id", "cp-4", "/checkpoints/1"),
        ("langgraph", "items/0/namespace", "memories", "/items/0/namespace"),
        ("honcho", "sessions/0/messages/0/peer_id", None, "/sessions/0/messages/0/peer_id"),
        ("honcho", "sessions/0/messages/1/id", "hm-1", "/sessions/0/messages/1"),
        ("honcho", "conclusions/0/observed_id", None, "/conclusions/0/observed_id"),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_place(system: str, path: str, value: Any, pointer: str) -> None:
    assert refused(system, change(sample(system), path, value)) == pointer


@pytest.mark.parametrize(
    ("system", "path", "value"),
    [
        ("chatgpt", "0/current_node", "nobody"),
        ("chatgpt", "0/mapping/q1/parent", "nobody"),
        ("chatgpt", "0/mapping/q1/children", ["a0", "a1", "nobody"]),
        ("chatgpt", "0/mapping/q1/parent", "a3"),
        ("chatgpt", "0/mapping/q1/message/author/role", "wizard"),
        ("chatgpt", "0/mapping/q1/message/create_time", "soon"),
        ("chatgpt", "0/mapping/q1/message/create_time", 1e300),
        ("mem0", "results/0/created_at", "yesterday"),
        ("zep", "threads/0/messages/0/role", "wizard"),
        ("letta", "agents/0/messages/0/role", "wizard"),
        ("langgraph", "checkpoints/1/values/messages/0/type", "wizard"),
        ("chatgpt", "0/mapping/q1/message/create_time", -1),
        ("chatgpt", "0/mapping/a1/parent", "a1"),
    ],
)
def test_what_is_odd_and_can_be_read_costs_no_message(system: str, path: str, value: Any) -> None:
    whole = {one["external_id"] for one in records(system) if one["type"] == "turn"}
    document = change(sample(system), path, value)
    assert refusals(system, document) == []
    assert {one["external_id"] for one in records(system, document) if one["type"] == "turn"} == whole


@pytest.mark.parametrize("factor", [1, 10**3, 10**6, 10**9])
def test_times_are_read_in_any_unit(factor: int) -> None:
    document = change(sample("chatgpt"), "0/mapping/q1/message/create_time", 1_767_258_010 * factor)
    assert turns("chatgpt", document)["q1"]["occurred_at"] == "2026-01-01T09:00:10.000Z"


def test_text_that_cannot_be_stored_is_replaced_in_every_importer() -> None:
    for system in ForeignSystem:
        written = json.dumps(sample(system))
        word = max(words_of(sample(system)), key=len)
        odd = written.replace(json.dumps(word)[1:-1], json.dumps(word)[1:-1] + "\\u0000\\ud800")
        assert odd != written, system
        document = read_document(odd.encode())
        found = [*convert(system, document.value, broken=document.broken)]
        assert not [one for one in found if one["type"] == "refused"], system
        assert f"{word}\ufffd\ufffd" in json.dumps(found, ensure_ascii=False).replace('\\"', '"').replace(
            "\\n", "\n"
        ), system


@pytest.mark.parametrize("system", ForeignSystem)
@pytest.mark.parametrize(
    "document", [1, "text", True, {"a": "\x00"}, {"a": "\ud800"}, {"a": float("nan")}, {"a": 2**70}, [[[[1]]]], [None]]
)
def test_no_document_ends_in_another_error(system: ForeignSystem, document: Any) -> None:
    found, error = attempt(system, document)
    if found is None:
        assert error is not None
        assert error.fields or error.code == "import_unreadable"
        assert "\x00" not in error.detail
    else:
        assert all(one["type"] == "refused" and one["detail"] for one in found)


@pytest.mark.parametrize("system", ForeignSystem)
def test_every_value_of_a_sample_can_be_of_another_type_without_another_error(system: ForeignSystem) -> None:
    original = sample(system)
    for path in paths_of(original):
        for value in (None, 7, "text", [{}]):
            found, error = attempt(system, change(original, path, value))
            assert (error is None) is (found is not None), path
            assert error is None or error.fields, path


def paths_of(value: Any, at: str = "") -> list[str]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, member in steps:
        path = f"{at}/{key}" if at else str(key)
        found += [path, *paths_of(member, path)]
    return found


def test_a_text_over_the_limit_of_an_append_is_refused_by_the_name_of_its_message() -> None:
    document = change(sample("mem0"), "results/0/memory", "x" * (2**20 + 1))
    (left_out,) = refusals("mem0", document)
    assert (left_out["kind"], left_out["external_id"], left_out["pointer"]) == ("memory", "m-1", "/results/0")
    assert "xxx" not in json.dumps(left_out)
    assert [one["external_id"] for one in records("mem0", document) if one["type"] == "memory"] == ["m-2"]


def test_metadata_over_the_limit_keeps_what_fits_and_names_what_was_left_out() -> None:
    document = change(sample("chatgpt"), "0/mapping/q1/message/metadata", {"small": 1, "large": "x" * 20_000})
    kept = turns("chatgpt", document)["q1"]["metadata"]["chatgpt"]
    assert kept["left_out"] == ["metadata"]
    assert kept["status"] == "finished_successfully"


@pytest.mark.slow
def test_a_long_chat_is_converted_without_recursion() -> None:
    size = 20_000
    mapping = {
        str(number): {
            "id": str(number), "parent": str(number - 1) if number else None,
            "children": [str(number + 1)] if number + 1 < size else [],
            "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": [f"Turn {number}"]}},
        }
        for number in range(size)
    }  # fmt: skip
    document = [{"id": "long", "mapping": mapping, "current_node": str(size - 1)}]
    assert len(turns("chatgpt", document)) == size


# the others


def test_items_of_openai_are_given_back_as_they_were() -> None:
    items = sample("openai")["items"]["data"]
    members = [one.members() for one in formats.parse(Format.OPENAI_RESPONSES, items)]
    kept = [{name: turn[name] for name in one} for one, turn in zip(members, turns("openai").values(), strict=True)]
    assert kept == members


def test_a_memory_of_mem0_keeps_owner_agent_time_and_expiry() -> None:
    first, second = records("mem0")
    assert (first["agent_id"], first["owner"], first["created_at"]) == ("cook", "mia", "2026-01-01T09:00:00.500Z")
    assert first["metadata"]["mem0"]["categories"] == ["health"]
    assert (second["agent_id"], second["expires_at"]) == ("default", "2030-01-01T00:00:00.000Z")


def test_edges_of_zep_are_facts_with_their_validity() -> None:
    (fact,) = (one for one in records("zep") if one["type"] == "fact")
    assert (fact["subject"], fact["predicate"], fact["object"]) == ("Mia", "LIVES_IN", "Lisbon")
    assert (fact["owner"], fact["valid_from"]) == ("mia", "2026-01-01T09:00:01.000Z")
    ended = change(sample("zep"), "edges/0/invalid_at", "2026-02-01T00:00:00Z")
    assert next(one for one in records("zep", ended) if one["type"] == "fact")["valid_to"] == "2026-02-01T00:00:00.000Z"


def test_an_agent_of_letta_is_a_conversation_and_its_blocks_are_memories() -> None:
    found = turns("letta")
    assert found["message-2"]["tool_calls"][0]["name"] == "find"
    assert found["message-3"]["tool_call_id"] == "call-1"
    memories = [one for one in records("letta") if one["type"] == "memory"]
    assert [(one["agent_id"], one["metadata"]["letta"]["label"]) for one in memories] == [("cook", "human")]
    old = {
        "name": "cook",
        "core_memory": [{"label": "human", "value": "Mia"}],
        "messages": [{"role": "user", "text": "Hi"}],
    }
    assert [one["type"] for one in records("letta", old)] == ["conversation", "turn", "memory"]


def test_a_thread_of_langgraph_keeps_trimmed_and_changed_messages_and_its_forks() -> None:
    found = [one for one in records("langgraph") if one["type"] in {"conversation", "turn"}]
    assert [one["external_id"] for one in found] == ["th-1", "h1", "a1", "t1", "a2", "a2#2", "th-1#cp-5", "a9"]
    assert found[5]["supersedes_external_id"] == "a2"
    assert (found[1]["occurred_at"], found[3]["tool_call_id"]) == ("2026-01-01T09:00:01.000Z", "call-1")
    assert found[2]["usage"] == {"prompt_tokens": 12, "completion_tokens": 3}


def test_a_thread_and_a_namespace_of_langgraph_never_get_the_name_of_another_thread() -> None:
    document = sample("langgraph")
    [one, *_] = document["checkpoints"]
    where = {"checkpoint_id": "1"}
    threads = [("a|b", ""), ("a", "b"), ("a%7Cb", "")]
    named = [
        one | {"config": {"configurable": where | {"thread_id": thread, "checkpoint_ns": namespace}}}
        for thread, namespace in threads
    ]
    found = records("langgraph", {"checkpoints": [part | {"parent_config": None} for part in named]})
    names = [part["external_id"] for part in found if part["type"] == "conversation"]
    assert names == ["a%7Cb", "a|b", "a%257Cb"]
    items = [{"namespace": ["a", "b"], "key": "c", "value": "x"}, {"namespace": ["a"], "key": "b/c", "value": "y"}]
    assert [part["external_id"] for part in records("langgraph", items)] == ["a/b/c", "a/b%2Fc"]


def test_a_peer_of_honcho_that_is_not_observed_speaks_as_the_assistant() -> None:
    found = turns("honcho")
    assert [(one["role"], one["actor"]) for one in found.values()] == [("user", "mia"), ("assistant", "cook")]
    (memory,) = (one for one in records("honcho") if one["type"] == "memory")
    assert (memory["agent_id"], memory["owner"], memory["content"]) == ("cook", "mia", "Mia likes soup")


# Claude.ai, Open WebUI, LibreChat


def shown(turn: dict[str, Any]) -> str:
    """The text that a model is shown of a turn."""
    content = turn.get("content")
    return content if isinstance(content, str) else to_text(parse_parts(content))


def test_attachments_thinking_and_calls_of_claude_are_kept() -> None:
    first, answer, result, rest, hello, old, new = turns("claude").values()
    assert "Day one: the river" in shown(first)
    assert first["metadata"]["claude"]["files"][1] == {"file_name": "map.png", "file_uuid": "file-1"}
    assert (shown(answer), "The plan has one day" in json.dumps(answer)) == ("Let me look.", True)
    [call] = answer["tool_calls"]
    assert (call["name"], result["tool_call_id"], result["content"]) == ("web_search", call["id"], "Douro")
    assert (rest["role"], rest["content"]) == ("assistant", "It is the Douro.")
    assert (old["content"], new["supersedes_external_id"], hello["role"]) == ("First answer", "cm-4", "user")
    [trip, _] = [one for one in records("claude") if one["type"] == "conversation"]
    assert (trip["title"], trip["created_at"]) == ("Trip to Porto", "2025-03-01T09:00:00.000Z")


def test_chats_of_open_webui_have_owners_models_and_earlier_answers() -> None:
    found = turns("open_webui")
    assert [one.get("owner") for one in records("open_webui") if one["type"] == "conversation"] == ["user-1", "user-2"]
    assert (found["om-2"]["model"], found["om-3"]["supersedes_external_id"]) == ("llama3.1:latest", "om-2")
    assert (shown(found["om-3"]), "It depends" in json.dumps(found["om-3"])) == ("Two hours.", True)
    assert found["ox-2"]["tool_calls"][0]["name"] == "weather"
    assert (found["ox-2/1"]["tool_call_id"], found["ox-2/2"]["content"]) == ("call-1", "It rains.")
    text = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> Hm\n</details>\nTwo.'
    hidden = change(sample("open_webui"), "0/chat/history/messages/om-2/content", text)
    assert shown(turns("open_webui", hidden)["om-2"]) == "Two."
    old = [
        {"id": "o", "chat": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}}
    ]
    assert [one["content"] for one in turns("open_webui", old).values()] == ["Hi", "Yo"]


def test_a_tree_of_librechat_is_read_as_its_list_is() -> None:
    found = turns("librechat")
    assert [*found] == ["lm-1", "lm-2", "lm-3", "lm-3/1", "lm-3/2", "lm-4"] or "lc-1#lm-2" in json.dumps(found)
    assert (found["lm-3"]["model"], found["lm-3/1"]["content"]) == ("gpt-4o", "London System")
    assert (shown(found["lm-3"]), "Calm means slow" in json.dumps(found["lm-3"])) == ("", True)
    flat = sample("librechat")
    listed, pending = [], flat["messages"]
    while pending:
        listed.append({key: value for key, value in pending[0].items() if key != "children"})
        pending = pending[0]["children"] + pending[1:]
    assert turns("librechat", flat | {"messages": listed}) == found
    assert turns("librechat", [flat | {"messages": [], "messagesTree": None}]) == {}


@pytest.mark.parametrize("system", ForeignSystem)
def test_the_system_of_a_document_is_recognised(system: ForeignSystem) -> None:
    assert detect(sample(system)) == system
    if isinstance(sample(system), list):
        assert detect([None, *sample(system)]) == system
    assert detect({"type": "header"}) is None


# the command


def command(*words: str | Path) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, "-m", "app.cli", *words], cwd=ROOT, capture_output=True, check=False)


def test_the_command_converts_an_archive_of_chatgpt(tmp_path: Path) -> None:
    archive = tmp_path / "export.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("conversations-000.json", json.dumps(sample("chatgpt")))
        second = json.dumps(sample("chatgpt")).replace('"c-1"', '"c-2"')
        opened.writestr("conversations-001.json", second)
        opened.writestr("user.json", "{}")
    done = command("convert", archive, "--from", "chatgpt", "--output", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    header, *lines, trailer = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert header["source"] == "chatgpt"
    assert trailer["counts"]["conversation"] == sum(one["type"] == "conversation" for one in lines) == 4


@pytest.mark.slow
def test_the_command_names_the_place_of_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(change(sample("mem0"), "results/1/memory", 7)))
    done = command("convert", wrong, "--from", "mem0", "--output", tmp_path / "out.jsonl")
    assert (done.returncode, len((tmp_path / "out.jsonl").read_text().splitlines())) == (1, 4), "the other is converted"
    assert b"memory m-2: /results/1/memory: a text is expected" in done.stderr
    (tmp_path / "out.jsonl").unlink()
    wrong.write_text('{"results":\n 7}')
    done = command("convert", wrong, "--from", "mem0", "--output", tmp_path / "out.jsonl")
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (1, ["wrong.json"])
    assert b"/results: a list is expected" in done.stderr
    assert b"--from is one of chatgpt" in command("convert", wrong, "--from", "nobody").stderr


@pytest.mark.parametrize(
    "piece",
    ["<details ", '<details type="reasoning" ', '<details type="reasoning">', "<think>", "\n:::thinking\n:::", " "],
)
@pytest.mark.parametrize("start", ["", "<think>", ":::thinking", "<details ", "<antThinking>"])
def test_the_work_of_hiding_reasoning_grows_with_the_length_of_the_text(start: str, piece: str) -> None:
    answer = {"id": "a", "parentId": None, "role": "assistant", "content": start + piece * (500_000 // len(piece))}
    chat = {"id": "c", "chat": {"history": {"currentId": "a", "messages": {"a": answer}}}}
    started = time.process_time()
    assert [*convert(ForeignSystem.OPEN_WEBUI, [chat])]
    assert time.process_time() - started < 10
