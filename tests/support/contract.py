"""Holds every response that a test sees against the OpenAPI document."""

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from jsonschema_rs import Draft202012Validator


class Contract:
    """The OpenAPI document as something a response can break."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._paths = [
            (re.compile("^" + re.sub(r"\{[^}]+\}", "[^/]+", path) + "/?$"), operations)
            for path, operations in sorted(document["paths"].items(), key=lambda item: item[0].count("{"))
        ]
        self._validators: dict[int, Draft202012Validator] = {}
        self.seen: set[tuple[str, int]] = set()
        self.operations = frozenset(
            operation["operationId"] for operations in document["paths"].values() for operation in operations.values()
        )

    def write_seen(self, folder: Path) -> None:
        """Write the operations that were seen to a file, for the end of the run."""
        body = {"operations": sorted(self.operations), "seen": sorted({name for name, code in self.seen if code < 300})}
        (folder / f"seen-{uuid.uuid4()}.json").write_text(json.dumps(body))

    def record(self, response: httpx.Response) -> None:
        """Record a response without checking its body."""
        self._content(response)

    def check(self, response: httpx.Response) -> None:
        """Fail unless the response is one that the document declares."""
        media_type, content = self._content(response)
        if content is None:
            return
        if media_type.endswith("ndjson"):
            for line in response.text.splitlines():
                self._validate(content[media_type], json.loads(line))
        elif media_type.endswith("json"):
            self._validate(content[media_type], response.json())
        elif media_type.endswith("event-stream"):
            for line in response.text.split("\n"):
                if line.startswith("data:") and line != "data: [DONE]":
                    self._validate(content[media_type], json.loads(line.removeprefix("data:")))

    def _content(self, response: httpx.Response) -> tuple[str, Mapping[str, Any] | None]:
        """The media type of a response, and what the document declares of its bodies; None where it has none."""
        operation = self._operation(response.request.method, response.request.url.path)
        if operation is None:
            assert response.status_code in {404, 405}, f"{response.request.url.path} is not in the document"
            return "", None
        name, status = operation["operationId"], str(response.status_code)
        self.seen.add((name, response.status_code))
        assert status in operation["responses"], f"{name} answered {status}, which it does not declare"
        content = operation["responses"][status].get("content", {})
        media_type = response.headers.get("content-type", "").split(";")[0]
        if not content:
            assert not response.content, f"{name} {status} has a body that it does not declare"
            return media_type, None
        assert media_type in content, f"{name} {status} is {media_type}, which it does not declare"
        return media_type, content

    def _operation(self, method: str, path: str) -> Mapping[str, Any] | None:
        for pattern, operations in self._paths:
            if pattern.match(path):  # the most specific path: others have no say in its methods
                return operations.get(method.lower())
        return None

    def _validate(self, media_type: Mapping[str, Any], value: Any) -> None:
        """Fail unless a value is of the schema that the document declares for it."""
        validator = self._validators.get(id(media_type))
        if validator is None:
            schema = media_type["schema"] | {"components": self._document["components"]}
            validator = self._validators[id(media_type)] = Draft202012Validator(schema)
        validator.validate(value)


def never_answered(folder: Path) -> set[str]:
    """Operations that no test of the run got a good answer from."""
    files = [json.loads(path.read_text()) for path in folder.glob("seen-*.json")]
    operations = {name for file in files for name in file["operations"]}
    return operations - {name for file in files for name in file["seen"]}
