"""The schemas of the tools are such that models, their endpoints and clients of any kind take them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.agents.tools.service import all_tools
from app.agents.tools.tool import Tool
from app.core.validation.json_text import MAX_SAFE_INTEGER
from tests.support.shared import api_document

TOOLS = [pytest.param(tool, id=tool.name) for tool in all_tools()]


def parts(value: Any) -> Iterator[Any]:
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from parts(one)


@pytest.mark.parametrize("tool", TOOLS)
def test_arguments_of_a_tool_are_described_without_references(tool: Tool) -> None:
    found = list(parts(tool.input_schema))
    assert not [one for one in found if isinstance(one, dict) and ("$ref" in one or "$defs" in one)]
    assert tool.input_schema["type"] == "object"
    assert tool.input_schema["additionalProperties"] is False


@pytest.mark.parametrize("tool", TOOLS)
def test_no_schema_of_a_tool_has_a_number_that_readers_disagree_about(tool: Tool) -> None:
    for value in (*parts(tool.input_schema), *parts(tool.output_schema)):
        assert not isinstance(value, int | float) or abs(value) <= MAX_SAFE_INTEGER


def test_no_number_of_the_openapi_document_is_beyond_what_json_readers_agree_on() -> None:
    document: dict[str, Any] = api_document()
    for value in parts(document):
        assert not isinstance(value, int | float) or abs(value) <= MAX_SAFE_INTEGER


@pytest.mark.parametrize("tool", TOOLS)
def test_arguments_of_a_tool_are_described_briefly(tool: Tool) -> None:
    """Clients send the schemas of all tools with every call of a model."""
    assert len(json.dumps(tool.input_schema)) < 4_000


@pytest.mark.parametrize("tool", TOOLS)
def test_an_output_schema_defines_what_it_refers_to_and_no_more(tool: Tool) -> None:
    found = list(parts(tool.output_schema))
    used = {one["$ref"].rpartition("/")[2] for one in found if isinstance(one, dict) and "$ref" in one}
    assert used == set((tool.output_schema or {}).get("$defs", {}))
