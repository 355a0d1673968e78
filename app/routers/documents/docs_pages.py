"""The interactive documentation, from files of the package: nothing is loaded from other servers.

A page runs only scripts of this package and its own inline script, connects only to this server, and cannot be framed.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from app.routers.documents.asyncapi import asyncapi_document
from app.routers.documents.openapi import openapi_document
from app.routers.http.app_state import app_state

_POLICY: Final = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER: Final = Path(__file__).parent
_ERRORS_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
}
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
async def get_error_codes() -> FileResponse:
    """Show all error codes with their remedies: the target of a problem's `type`. `make error-page` writes the file."""
    return FileResponse(_FOLDER / "errors.html", headers=_ERRORS_HEADERS)


@router.get("/docs/errors.css")
async def get_style_of_error_codes() -> FileResponse:
    """Return the style sheet of the error codes."""
    return FileResponse(_FOLDER / "errors.css", headers=_ERRORS_HEADERS)


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def get_openapi(request: Request) -> Response:
    """Show the OpenAPI document."""
    return _encoded_once(request, openapi_document)


@router.get("/asyncapi.json")
async def get_asyncapi(request: Request) -> Response:
    """Show the AsyncAPI document: the WebSocket and the event streams."""
    return _encoded_once(request, lambda app: asyncapi_document(app.version))


def _encoded_once(request: Request, document_of: Callable[[FastAPI], object]) -> Response:
    """Answer with a document. Anyone may ask for it as often as they like, and encoding it takes 15 ms."""
    documents, path = app_state(request.app).documents, request.url.path
    if path not in documents:
        documents[path] = bytes(JSONResponse(document_of(request.app)).body)
    return Response(documents[path], media_type="application/json")
