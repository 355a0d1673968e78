"""Requests to a chat model for a value of a given JSON schema, and reading of its answer. Pure.

Endpoints accept different requests. A `RequestVariant` is one form of the request. `other_variant` gives the next form
to try if an endpoint refuses a part of it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import JsonValue, ValidationError

from app.providers.schemas import ChatMessage, LimitName, Shape

Format: TypeAlias = Literal["schema", "object", "text"]

_OPENAI_HOST = "api.openai.com"
_MAX_PROBLEMS = 20
_MAX_REPEATED_CHARACTERS = 16_384
_CODE_BLOCK = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_ABOUT_FORMAT = ("response_format", "json_schema", "json_object", "schema", "structured output", "grammar", "guided")
# strict endpoints refuse these, or a model takes them as a description of the value
_LEFT_OUT = frozenset({"default", "title", "description", "examples", "minLength", "maxLength", "discriminator"})
_EXAMPLES: Mapping[str, JsonValue] = {"string": "…", "integer": 1, "number": 0.5, "boolean": False}


def first_limit_name(base_url: str) -> LimitName:
    """Return the name of the limit of an answer's tokens that an endpoint probably accepts."""
    # OpenAI's newer models accept only the newer name, most other endpoints only the older one
    return "max_completion_tokens" if urlsplit(base_url).hostname == _OPENAI_HOST else "max_tokens"


@dataclass(frozen=True, slots=True)
class RequestVariant:
    """One form of a request. `format`: a JSON schema, any JSON object, or text with the schema in words."""

    format: Format = "schema"
    limit: LimitName = "max_tokens"
    limit_changed: bool = False
    temperature: bool = True
    described: bool = False
    """Whether the messages describe the shape besides the schema, because an answer had another shape."""


def described_variant(variant: RequestVariant, *, is_json: bool) -> RequestVariant:
    """Return the variant to use after an answer of another shape: the endpoint may ignore the schema.

    A schema that gave JSON may still be of use.
    """
    format_ = "object" if variant.format == "schema" and not is_json else variant.format
    return replace(variant, described=True, format=format_)


def other_variant(variant: RequestVariant, complaint: str) -> RequestVariant | None:
    """Return the variant to try after a request was refused with this complaint; None if the cause is unknown."""
    said = complaint.lower()
    if variant.temperature and "temperature" in said:
        return replace(variant, temperature=False)
    if not variant.limit_changed and ("max_tokens" in said or "max_completion_tokens" in said):
        other: LimitName = "max_completion_tokens" if variant.limit == "max_tokens" else "max_tokens"
        return replace(variant, limit=other, limit_changed=True)
    if variant.format != "text" and any(name in said for name in _ABOUT_FORMAT):
        return replace(variant, format="object" if variant.format == "schema" else "text")
    return None


class UnusableError(Exception):
    """An answer with the wrong shape. `problems` describes the errors for the model, and may quote the answer."""

    def __init__(self, problems: str, *, is_json: bool) -> None:
        super().__init__("not of the shape")
        self.problems = problems
        self.is_json = is_json


@dataclass(frozen=True, slots=True)
class ShapeRequest(Generic[Shape]):
    """A shape with its schema in the strict form: every member is required, and no others are allowed."""

    shape: type[Shape]
    schema: dict[str, JsonValue]

    @property
    def name(self) -> str:
        """Return the shape's name in the form that endpoints accept."""
        return _NOT_IN_A_NAME.sub("_", self.shape.__name__)[:64]

    def read(self, answer: str) -> Shape:
        """Return the value in an answer, also inside a code fence or other text. Raises UnusableError."""
        for candidate in _candidates(_ESCAPED_NUL.sub(r"\1", answer)):
            try:
                value = self.shape.model_validate_json(candidate)
            except ValidationError as error:
                if error.errors(include_url=False)[0]["type"] != "json_invalid":
                    raise UnusableError(_problems(error), is_json=True) from None
            else:
                if value.model_dump(mode="json") == self._example():
                    raise UnusableError("it repeats the example", is_json=True)
                return value
        raise UnusableError("it is not JSON", is_json=False)

    def instructed(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the messages, with the schema as text at the end of the system message."""
        words = (
            "Answer with one JSON object and nothing before or after it. It is valid against this JSON schema:\n"
            f"{_compact(self.schema)}\nIt looks like this, with values of your own:\n{_compact(self._example())}"
        )
        first = messages[0] if messages else None
        if first is None or first.role != "system":
            return [ChatMessage("system", words), *messages]
        return [ChatMessage("system", f"{first.content}\n\n{words}"), *messages[1:]]

    def repair_messages(self, messages: Sequence[ChatMessage], answer: str, problems: str) -> list[ChatMessage]:
        """Return the messages, the invalid answer, and a message with its problems."""
        words = (
            f"This answer cannot be used: {problems}\nAnswer again, with one JSON object and nothing before or after"
            f" it. It looks like this, with values of your own:\n{_compact(self._example())}"
        )
        said = answer[:_MAX_REPEATED_CHARACTERS]
        return [*messages, ChatMessage("assistant", said), ChatMessage("user", words)]

    def _example(self) -> JsonValue:
        """Return a filled value of the shape: small models copy what they are shown, also a schema."""
        definitions = self.schema.get("$defs")
        return _example(self.schema, definitions if isinstance(definitions, dict) else {})


def shape_request(shape: type[Shape]) -> ShapeRequest[Shape]:
    """Return a shape with its strict schema."""
    return ShapeRequest(shape, cast("dict[str, JsonValue]", _strict(cast("JsonValue", shape.model_json_schema()))))


def cleaned(text: str) -> str:
    """Return a model's text without NUL and lone surrogates, which cannot be stored, and without its `<think>` part."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode().strip()
    if text.startswith("<think>") and "</think>" in text:
        text = text.partition("</think>")[2].strip()
    return text


def _compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _example(schema: JsonValue, definitions: Mapping[str, JsonValue], *, inside: tuple[str, ...] = ()) -> JsonValue:
    """Return an example of a strict schema: texts are `…`, lists have one item, and unions are their first member.

    `inside` are the references that led here. A shape inside itself is null.
    """
    if not isinstance(schema, dict):
        return None
    step = partial(_example, definitions=definitions, inside=inside)
    match schema:
        case {"$ref": str(reference)}:
            definition = None if reference in inside else definitions.get(reference.rpartition("/")[2])
            example = step(definition, inside=(*inside, reference))
        case {"enum": [first, *_]} | {"const": first}:
            example = first
        case {"anyOf": [first, *_]}:
            example = step(first)
        case {"type": "object", "properties": dict(properties)}:
            example = {name: step(member) for name, member in properties.items()}
        case {"type": "array", "items": items}:
            example = [step(items)]
        case _:
            example = _EXAMPLES.get(str(schema.get("type")))
    return example


def _candidates(answer: str) -> list[str]:
    candidates = [answer]
    code_block = _CODE_BLOCK.search(answer)
    if code_block is not None:
        candidates.append(code_block[1])
    start, end = answer.find("{"), answer.rfind("}")
    if 0 <= start < end:
        candidates.append(answer[start : end + 1])
    return candidates


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS]
    return "; ".join(f"at /{'/'.join(str(step) for step in problem['loc'])}: {problem['msg']}" for problem in problems)


def _strict(schema: JsonValue) -> JsonValue:
    """Return a schema in the strict form. The names in `properties` and `$defs` are not treated as keywords."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if "$ref" in schema and keyword not in {"$ref", "$defs"}:
            continue  # no other member is allowed with a reference
        if keyword in {"properties", "$defs"} and isinstance(value, dict):
            strict[keyword] = {name: _strict(member) for name, member in value.items()}
        elif keyword == "oneOf":
            strict["anyOf"] = _strict(value)
        elif keyword in {"enum", "const", "required"}:
            strict[keyword] = value
        elif keyword not in _LEFT_OUT:
            strict[keyword] = _strict(value)
    properties = strict.get("properties")
    if isinstance(properties, dict):
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    return strict
