"""The interactive documentation, from files of the package: nothing is loaded from other servers.

A page runs only scripts of this package and its own inline script, connects only to this server, and cannot be framed.
"""

import base64
import hashlib
import html
import re
from typing import Final

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse

from app.core.error_codes import ERROR_CODES
from app.routers.documents.asyncapi import asyncapi_document

_POLICY: Final = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_INLINE_SCRIPT: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def get_docs() -> HTMLResponse:
    """Show the interactive documentation."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Turnkeep",
        swagger_js_url="/docs/assets/swagger-ui-bundle.js",
        swagger_css_url="/docs/assets/swagger-ui.css",
        swagger_favicon_url="/docs/assets/favicon.png",
    )
    digests = [hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(bytes(page.body))]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    page.headers["Content-Security-Policy"] = _POLICY.format(hashes=hashes)
    return page


@router.get("/docs/errors")
async def get_error_codes() -> HTMLResponse:
    """Show the catalogue of error codes, the target of a problem's `type`."""
    rows = "".join(
        f'<dt id="{code}"><code>{code}</code></dt><dd>{html.escape(text)}</dd>' for code, text in ERROR_CODES.items()
    )
    page = f"<!doctype html><meta charset=utf-8><title>Turnkeep: error codes</title><h1>Error codes</h1><dl>{rows}</dl>"
    return HTMLResponse(page)


@router.get("/asyncapi.json")
async def get_asyncapi(request: Request) -> JSONResponse:
    """Show the AsyncAPI document: the WebSocket and the event streams."""
    return JSONResponse(asyncapi_document(str(request.app.version)))
