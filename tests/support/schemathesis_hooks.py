"""What schemathesis must know of bodies that it cannot write itself (`SCHEMATHESIS_HOOKS`)."""

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/gzip")
def lines(context: Any, value: Any) -> bytes:  # noqa: ARG001 - the form that schemathesis asks for
    """Write bytes as they are, and anything else as a line of JSON."""
    return value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
