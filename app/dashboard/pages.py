"""Serves the demo page. Its files are public; what it shows is fetched with a key that its reader pastes.

What always holds: a page runs only scripts that are files of this package, talks only to this server, and stands in
no page of another site.
"""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

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

router = APIRouter(include_in_schema=False)


@router.get("/dashboard/demo")
async def get_demo() -> FileResponse:
    """Show two windows of one conversation."""
    return FileResponse(_FOLDER / "index.html", headers=_HEADERS)


@router.get("/dashboard/demo/{name}")
async def get_demo_file(name: str) -> FileResponse:
    """Give one of the files that the demo is made of."""
    file = _PAGES.get(name, name if name in _FILES else None)
    if file is None:
        raise HTTPException(404)
    return FileResponse(_FOLDER / file, headers=_HEADERS)
