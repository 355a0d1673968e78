"""How a shape is asked for and read, without a model."""

import json
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field

from app.providers.schemas import ChatMessage
from app.providers.shapes import RequestVariant, UnusableError, cleaned, other_variant, shape_request


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    default: str | None = None  # a member that has the name of a keyword


class Zoo(BaseModel):
    """A few animals."""

    title: Annotated[str, Field(min_length=1, max_length=100)]
    animals: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    more: "Zoo | None" = None


class Said(BaseModel):
    text: str


def test_a_schema_is_strict_and_keeps_the_names_of_members() -> None:
    schema = cast("dict[str, Any]", shape_request(Zoo).schema)
    assert list(schema["$defs"]) == ["Cat", "Dog", "Zoo"]
    zoo, dog = schema["$defs"]["Zoo"], schema["$defs"]["Dog"]
    assert schema["$ref"] == "#/$defs/Zoo"
    assert zoo["required"] == ["title", "animals", "more"]
    assert zoo["additionalProperties"] is False
    assert zoo["properties"]["title"] == {"type": "string"}
    assert zoo["properties"]["animals"]["items"] == {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
    assert dog["properties"]["default"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert dog["required"] == ["kind", "default"]
    text = json.dumps(schema)
    assert not any(f'"{word}":' in text for word in ("oneOf", "discriminator", "maxLength", "minLength"))


def test_a_schema_has_no_docstrings_or_descriptions() -> None:
    assert "A few animals" not in json.dumps(shape_request(Zoo).schema)
    assert "description" not in json.dumps(shape_request(Zoo).schema)


def test_a_repair_shows_a_filled_example_that_is_valid() -> None:
    shown = shape_request(Zoo).repair_messages([], "no", "it is not JSON")[-1].content
    example = json.loads(shown[shown.index("{") :])
    zoo = Zoo.model_validate(example)
    assert (zoo.title, zoo.animals) == ("…", [Cat(kind="cat", lives=1)])
    assert "$defs" not in shown


def test_an_answer_that_repeats_the_example_is_not_used() -> None:
    with pytest.raises(UnusableError) as unusable:
        shape_request(Said).read('{"text": "…"}')
    assert unusable.value.is_json


@pytest.mark.parametrize(
    "answer",
    [
        '{"text": "a"}',
        '```json\n{"text": "a"}\n```',
        'Here it is:\n```\n{"text": "a"}\n```\nAnything else?',
        'Sure! {"text": "a"} I hope it helps.',
        '{"text": "a\\u0000"}',
    ],
)
def test_a_value_is_found_in_a_code_block_and_among_words(answer: str) -> None:
    assert shape_request(Said).read(answer).text == "a"


def test_an_escaped_backslash_before_what_looks_like_nul_stays() -> None:
    assert shape_request(Said).read(r'{"text": "\\u0000 \\\u0000"}').text == "\\u0000 \\"


@pytest.mark.parametrize(
    ("answer", "is_json", "problem"),
    [
        ("I would rather not.", False, "it is not JSON"),
        ('{"text": "a"', False, "it is not JSON"),
        ('{"text": 1}', True, "at /text: Input should be a valid string"),
        ("[]", True, "at /: Input should be an object"),
        ('```json\n{"texts": []}\n```', True, "at /text: Field required"),
    ],
)
def test_a_value_of_another_shape_is_reported_with_the_place_of_the_fault(
    answer: str, is_json: object, problem: str
) -> None:
    with pytest.raises(UnusableError) as unusable:
        shape_request(Said).read(answer)
    assert unusable.value.is_json is is_json
    assert problem in unusable.value.problems
    assert str(unusable.value) == "not of the shape"


def test_the_schema_in_words_stands_in_the_one_system_message() -> None:
    asked = shape_request(Said)
    alone = asked.instructed([ChatMessage("user", "hi")])
    assert [message.role for message in alone] == ["system", "user"]
    joined = asked.instructed([ChatMessage("system", "Be brief."), ChatMessage("user", "hi")])
    assert [message.role for message in joined] == ["system", "user"]
    assert joined[0].content.startswith("Be brief.\n\n")
    assert '"text"' in joined[0].content


def test_manners_only_go_down_and_end() -> None:
    complaint = "response_format max_tokens max_completion_tokens temperature json_schema"
    variant: RequestVariant | None = RequestVariant()
    seen: list[RequestVariant] = []
    while variant is not None:
        seen.append(variant)
        variant = other_variant(variant, complaint)
    assert len(seen) == len(set(seen)) == 5
    assert seen[-1].format == "text"
    assert other_variant(RequestVariant(), "no such model") is None


def test_what_cannot_be_stored_and_thoughts_aloud_are_taken_out() -> None:
    assert cleaned(" a\0b\ud800 ") == "ab?"
    assert cleaned("<think>hm { } </think>\n yes") == "yes"
    assert cleaned("<think>never ends") == "<think>never ends"
