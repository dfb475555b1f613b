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

from gateway.admin.app import AdminDoor
from gateway.admin.self_service import OwnLimits, OwnUsage
from gateway.api.chat import CHAT
from gateway.api.completions import COMPLETIONS
from gateway.api.endpoint import GenerationEndpoint
from gateway.api.errors import as_api_error
from gateway.api.health import Healthz, Readyz, Scrape
from gateway.api.middleware import Authorisation, BodyLimit, Envelope
from gateway.api.models import ListModels, ModelCards, RetrieveModel
from gateway.api.route_stage import model_names
from gateway.api.service_classes import TierClasses
from gateway.api.sessions import OneSession
from gateway.api.tokenization import Detokenize, Tokenize
from gateway.services import Services
from gateway.settings import Settings

RELAY_DEADLINE_S = 3.0
"""How long the end of the process waits for usage to leave it. What has not left waits in the journal."""


def create_app(settings: Settings, services: Services) -> Starlette:
    """The ASGI application. Its lifespan is that of the services."""
    door = [] if services.admin is None else [Middleware(AdminDoor, admin=services.admin)]
    app = Starlette(
        routes=_routes(settings, services),
        middleware=[
            Middleware(Envelope),
            *door,
            Middleware(Authorisation, authenticator=services.authenticator),
            Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes),
        ],
        exception_handlers={HTTPException: _answer_routing},
        lifespan=_lifespan(services),
    )
    # A redirect would repeat the client's Host header, and no client needs one.
    app.router.redirect_slashes = False
    return app


def _routes(settings: Settings, services: Services) -> list[Route]:
    engine, depth = services.engine, settings.max_json_depth
    cards = ModelCards(engine, model_names(engine, settings))
    return [
        Route("/v1/chat/completions", GenerationEndpoint(CHAT, services, settings), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(COMPLETIONS, services, settings), methods=["POST"]),
        Route("/v1/models", ListModels(cards), methods=["GET"]),
        Route("/v1/models/{id:path}", RetrieveModel(cards), methods=["GET"]),
        Route("/v1/tokenize", Tokenize(engine, depth), methods=["POST"]),
        Route("/v1/detokenize", Detokenize(engine, depth), methods=["POST"]),
        Route("/v1/sessions/{id:path}", OneSession(services.sessions), methods=["GET", "DELETE"]),
        Route("/v1/usage", OwnUsage(services.analytics), methods=["GET"]),
        Route("/v1/limits", OwnLimits(services.limiter, TierClasses(settings)), methods=["GET"]),
        Route("/healthz", Healthz(), methods=["GET"]),
        Route("/readyz", Readyz(engine, services.journal), methods=["GET"]),
        Route("/metrics", Scrape(services.metrics), methods=["GET"]),
    ]


def _lifespan(services: Services) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        services.prices.start()
        if services.relay is not None:
            services.relay.start()
        await asyncio.to_thread(services.engine.start)
        try:
            yield
        finally:
            await asyncio.to_thread(services.engine.close)
            await services.limiter.aclose()
            await services.sessions.aclose()
            await services.prices.aclose()
            if services.relay is not None:
                await services.relay.aclose(RELAY_DEADLINE_S)
            await services.journal.aclose()
            await services.analytics.aclose()
            await services.authenticator.aclose()
            if services.admin is not None:
                await services.admin.aclose()

    return lifespan


async def _answer_routing(request: Request, error: Exception) -> Response:
    """The router's 404 and 405."""
    answer = as_api_error(error)
    assert answer is not None
    return Response(answer.envelope(), answer.status, answer.headers, "application/json")
