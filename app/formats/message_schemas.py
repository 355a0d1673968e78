"""Shapes of content parts, tool calls and messages for the API documents.

They document values and do not validate them: other shapes are stored as given, so each union ends with an open shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from typing_extensions import TypeAliasType


@dataclass(frozen=True, slots=True)
class DocumentedAs:
    """An annotation: the API documents show the schema of `shape`; values are not validated by it."""

    shape: object

    def __get_pydantic_json_schema__(
        self, _schema: Mapping[str, Any], handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of the shape."""
        # as a list item, since a shape by itself would be inlined instead of referenced
        shapes: Any = GenericAlias(list, (self.shape,))
        adapter: TypeAdapter[object] = TypeAdapter(shapes)
        return cast("JsonSchemaValue", handler(adapter.core_schema)["items"])


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class TextPart(_Open):
    """A text part."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class ImageUrl(_Open):
    """The address of an image in chat completions."""

    url: str


class ImagePart(_Open):
    """An image part: an http or data URL, a file id, or Anthropic's `source`."""

    type: Literal["image", "image_url", "input_image"]
    image_url: str | ImageUrl | None = None
    url: str | None = None
    file_id: str | None = None
    source: dict[str, Any] | None = None


class InputAudio(_Open):
    """Base64 audio and its encoding (`wav`, `mp3`)."""

    data: str
    format: str


class AudioPart(_Open):
    """An audio part."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class FilePart(_Open):
    """A document part of chat completions, Responses, or Anthropic (`source`)."""

    type: Literal["file", "input_file", "document"]
    file: dict[str, Any] | None = None
    filename: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    title: str | None = None
    source: dict[str, Any] | None = None


class OtherPart(_Open):
    """A part of another type, which is stored as given."""

    type: str | None = None


ContentPart = TypeAliasType("ContentPart", TextPart | ImagePart | AudioPart | FilePart | OtherPart)


class FunctionCall(_Open):
    """The function that a model calls; `arguments` is JSON text."""

    name: str
    arguments: str


class CanonicalToolCall(_Open):
    """A tool call in the shape of this API."""

    id: str
    name: str
    arguments: str | dict[str, Any] | None = None


class FunctionToolCall(_Open):
    """A tool call in the shape of chat completions."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class OtherToolCall(_Open):
    """A tool call of another shape, which is stored as given."""

    id: str | None = None


ToolCall = TypeAliasType("ToolCall", CanonicalToolCall | FunctionToolCall | OtherToolCall)


class ToolOutput(_Open):
    """The result of the tool call `tool_call_id`."""

    tool_call_id: str
    content: str | list[ContentPart] | None = None
    is_error: bool = Field(False, description="Whether the tool failed.")


class ProviderMessage(_Open):
    """A message of chat completions, Anthropic or Workers AI, or a turn in the canonical format."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ResponsesItem(_Open):
    """An item of OpenAI Responses: a message, a function call, its output, reasoning."""

    type: str
    role: str | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None


Message = TypeAliasType("Message", ProviderMessage | ResponsesItem)
