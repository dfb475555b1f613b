"""The application: the only place that wires the gateway's parts together."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admission import Limiter
from gateway.api.chat import CHAT
from gateway.api.completions import COMPLETIONS
from gateway.api.endpoint import GenerationEndpoint
from gateway.api.engine_client import EngineClient
from gateway.api.errors import as_api_error
from gateway.api.health import Healthz, Readyz, Scrape
from gateway.api.middleware import Authorisation, BodyLimit, Envelope
from gateway.api.models import ListModels, RetrieveModel
from gateway.api.tokenization import Detokenize, Tokenize
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.records import Principal


def create_app(
    settings: Settings,
    engine: EngineClient,
    authenticator: Authenticator[Principal],
    limiter: Limiter,
    metrics: Metrics,
) -> Starlette:
    """The ASGI application. Its lifespan starts the engine, and ends the engine, the limiter and the authenticator."""
    app = Starlette(
        routes=_routes(settings, engine, limiter, metrics),
        middleware=[
            Middleware(Envelope),
            Middleware(Authorisation, authenticator=authenticator),
            Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes),
        ],
        exception_handlers={HTTPException: _answer_routing},
        lifespan=_lifespan(engine, authenticator, limiter),
    )
    # A redirect would repeat the client's Host header, and no client needs one.
    app.router.redirect_slashes = False
    return app


def _routes(settings: Settings, engine: EngineClient, limiter: Limiter, metrics: Metrics) -> list[Route]:
    depth = settings.max_json_depth
    return [
        Route("/v1/chat/completions", GenerationEndpoint(CHAT, engine, limiter, metrics, settings), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(COMPLETIONS, engine, limiter, metrics, settings), methods=["POST"]),
        Route("/v1/models", ListModels(engine), methods=["GET"]),
        Route("/v1/models/{id:path}", RetrieveModel(engine), methods=["GET"]),
        Route("/v1/tokenize", Tokenize(engine, depth), methods=["POST"]),
        Route("/v1/detokenize", Detokenize(engine, depth), methods=["POST"]),
        Route("/healthz", Healthz(), methods=["GET"]),
        Route("/readyz", Readyz(engine), methods=["GET"]),
        Route("/metrics", Scrape(metrics), methods=["GET"]),
    ]


def _lifespan(
    engine: EngineClient, authenticator: Authenticator[Principal], limiter: Limiter
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(engine.start)
        try:
            yield
        finally:
            await asyncio.to_thread(engine.close)
            await limiter.aclose()
            await authenticator.aclose()

    return lifespan


async def _answer_routing(request: Request, error: Exception) -> Response:
    """The router's 404 and 405."""
    answer = as_api_error(error)
    assert answer is not None
    return Response(answer.envelope(), answer.status, answer.headers, "application/json")
