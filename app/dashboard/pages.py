"""Serves the home page, the dashboard and the demo page. Their files are public; the pages call the API with a key.

Invariants: a page runs only scripts that are files of this package, sends requests only to this server, and cannot be
framed by a page of another site. The home page runs no script and cannot be framed at all.
"""

import asyncio
import gzip
from collections.abc import Sequence
from functools import cache
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response

_HOME: Final = Path(__file__).parent / "home.html"
_FOLDER: Final = Path(__file__).parent / "demo"
_PAGES: Final = {"": "index.html", "window": "window.html"}
_FILES: Final = frozenset({"demo.css", "demo.js", "live.js", "window.js", "model.js"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; frame-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_HOME_HEADERS: Final = _HEADERS | {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Vary": "Accept",
}
_BUILT: Final = Path(__file__).parent / "built"
_DASHBOARD_HEADERS: Final = _HEADERS | {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
_ASSET_HEADERS: Final = _DASHBOARD_HEADERS | {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Vary": "Accept-Encoding",
}
_MAX_NAME: Final = 60
"""Characters of a file's name. File systems refuse a name over 255 bytes; the names that are built have about 20."""
_LINKS: Final = {
    "dashboard": "/dashboard",
    "demo": "/dashboard/demo",
    "docs": "/docs",
    "errors": "/docs/errors",
    "openapi": "/openapi.json",
    "asyncapi": "/asyncapi.json",
    "health": "/healthz",
    "readiness": "/readyz",
}

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def get_home(request: Request) -> Response:
    """Show what this server is and where its pages are; as JSON to clients that do not accept HTML."""
    if _accepts_html(request.headers.getlist("accept")):
        return FileResponse(_HOME, headers=_HOME_HEADERS)
    about = {"name": "Turnkeep", "version": str(request.app.version), "links": _LINKS}
    return JSONResponse(about, headers=_HOME_HEADERS)


def _accepts_html(accept: Sequence[str]) -> bool:
    """Return whether an Accept header allows HTML: by name, by a wildcard, or because there is no header."""
    named = {item.partition(";")[0].strip().lower() for item in ",".join(accept).split(",")} - {""}
    by_wildcard = "*/*" in named and "application/json" not in named
    return not named or by_wildcard or not named.isdisjoint({"text/html", "text/*"})


@router.get("/dashboard/demo")
async def get_demo() -> FileResponse:
    """Show two windows of one conversation."""
    return FileResponse(_FOLDER / "index.html", headers=_HEADERS)


@router.get("/dashboard/demo/{name}")
async def get_demo_file(name: str) -> FileResponse:
    """Return one of the demo's files."""
    file = _PAGES.get(name, name if name in _FILES else None)
    if file is None:
        raise HTTPException(404)
    return FileResponse(_FOLDER / file, headers=_HEADERS)


@router.get("/dashboard/assets/{name}")
async def get_dashboard_asset(request: Request, name: str) -> Response:
    """Return a script or style sheet of the dashboard. Its name has a hash of its content, so it never changes."""
    file = _BUILT / "assets" / name
    if len(name) > _MAX_NAME or file.parent != _BUILT / "assets" or not file.is_file():
        raise HTTPException(404)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(file, headers=_ASSET_HEADERS)
    kind = guess_type(name)[0] or "application/octet-stream"
    content = await asyncio.to_thread(_gzipped, file)
    return Response(content, headers=_ASSET_HEADERS | {"Content-Encoding": "gzip"}, media_type=kind)


@cache
def _gzipped(file: Path) -> bytes:
    """Return a built file in gzip. It never changes, and all of them together have less than 200 kB."""
    return gzip.compress(file.read_bytes())


@router.get("/dashboard")
@router.get("/dashboard/{path:path}")
async def get_dashboard(path: str = "") -> FileResponse:
    """Show the dashboard, which finds its page by the path. A path with a dot is that of a file that does not exist."""
    if "." in path or path.startswith(("demo/", "assets/")):
        raise HTTPException(404)
    return FileResponse(_BUILT / "index.html", headers=_DASHBOARD_HEADERS)
