"""The interactive documentation, from files that come with the package: nothing is fetched from elsewhere."""

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def get_docs() -> HTMLResponse:
    """Show the interactive documentation."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Turnkeep",
        swagger_js_url="/docs/assets/swagger-ui-bundle.js",
        swagger_css_url="/docs/assets/swagger-ui.css",
        swagger_favicon_url="/docs/assets/favicon.png",
    )
