"""Liveness, readiness and metrics for operators. No API key needed."""

import hmac
from typing import Final, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel

from app.core.errors import Unauthenticated
from app.routers.http.app_state import app_state
from app.routers.http.dependencies import Services
from app.routers.http.problems import problem_responses

router = APIRouter(tags=["operations"])


_METRICS_RESPONSES: Final[dict[int | str, dict[str, object]]] = {
    200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}},
    **problem_responses(401, 404),
}


class Health(BaseModel):
    """The state of the process: alive, or ready."""

    status: Literal["ok"]


@router.get("/healthz")
async def get_health() -> Health:
    """Return whether the process answers."""
    return Health(status="ok")


@router.head("/healthz", response_class=Response)
async def head_health() -> Response:
    """Return whether the process answers: as GET, without a body."""
    return _headers_of(Health(status="ok"))


@router.get("/readyz", responses=problem_responses(503))
async def get_readiness(services: Services) -> Health:
    """Return whether requests can be served: the database answers and the model is loaded."""
    await services.require_ready()
    return Health(status="ok")


@router.head("/readyz", response_class=Response, responses=problem_responses(503))
async def head_readiness(services: Services) -> Response:
    """Return whether requests can be served: as GET, without a body."""
    await services.require_ready()
    return _headers_of(Health(status="ok"))


def _headers_of(health: Health) -> Response:
    # the server omits the body, and sends the length that GET would have
    return Response(health.model_dump_json(), media_type="application/json")


@router.get("/metrics", response_class=Response, responses=_METRICS_RESPONSES)
async def get_metrics(request: Request) -> Response:
    """Return metrics in the text format of Prometheus, or in that of OpenMetrics, with exemplars, if `Accept` asks so.

    401 without the key of the setting `TURNKEEP_METRICS_KEY`, if set; 404 if `TURNKEEP_METRICS_PORT` names another
    port.
    """
    _require_metrics_key(request)
    registry = app_state(request.app).registry
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), media_type=content_type)


def _require_metrics_key(request: Request) -> None:
    """Raise Unauthenticated without the key of the settings.

    It is no API key, so that metrics are readable while the database is unavailable.
    """
    wanted = app_state(request.app).settings.telemetry.metrics_key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if wanted is None:
        return
    same = hmac.compare_digest(token.strip().encode(), wanted.get_secret_value().encode())
    if scheme.lower() != "bearer" or not same:
        raise Unauthenticated("unauthenticated", "Send the key in TURNKEEP_METRICS_KEY as `Authorization: Bearer …`.")
