"""The application: the only place that wires the gateway's parts together."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.batches.line_log import LineLog
from gateway.batches.runner import BatchRunner
from gateway.config.settings import Settings
from gateway.formats.anthropic.count import CountTokens
from gateway.formats.anthropic.endpoint import MESSAGES
from gateway.formats.openai.batch_endpoints import batch_endpoints, line_endpoints, open_runner
from gateway.formats.openai.chat import CHAT
from gateway.formats.openai.completions import COMPLETIONS
from gateway.formats.openai.embeddings import EmbeddingsEndpoint
from gateway.formats.openai.file_upload import FORM_BYTES
from gateway.formats.openai.models import ListModels, ModelCards, RetrieveModel
from gateway.formats.openai.sessions import OneSession
from gateway.formats.openai.tokenization import Detokenize, Tokenize
from gateway.formats.openai_responses.endpoint import RESPONSES
from gateway.formats.openai_responses.stored import InputItems, OneResponse
from gateway.generation.endpoint import GenerationEndpoint
from gateway.generation.health import Healthz, Readyz, Scrape
from gateway.generation.services import Services
from gateway.generation.stages import Stages
from gateway.http import access
from gateway.http.access import AccessPolicy, Endpoint
from gateway.http.cross_origin import CrossOrigin
from gateway.http.error_format import format_error
from gateway.http.errors import as_api_error
from gateway.http.front_page import FrontPage
from gateway.http.made_body import PUBLIC, MadeBody, document_endpoint
from gateway.http.middleware import Authorisation, BodyLimit, ErrorMiddleware, MountByPrefix
from gateway.http.request_state import request_state
from gateway.management.console.opening import open_console
from gateway.management.console.screens import PREFIX as CONSOLE_PREFIX
from gateway.management.http.app import DOCUMENT_PATH as ADMIN_DOCUMENT_PATH
from gateway.management.http.app import AdminApp
from gateway.management.http.lora import LOAD_PATH, UNLOAD_PATH, LoraAdapters
from gateway.management.http.peers import PeerAuthentication
from gateway.management.http.self_service import OwnLimits, OwnRefusals, OwnUsage
from gateway.management.operations.errors import not_found
from gateway.management.operations.routes import PREFIX as ADMIN_PREFIX
from gateway.reference.document import v1_document
from gateway.reference.endpoints import (
    DOCUMENT_PATH,
    PAGE_PATH,
    STYLE_PATH,
    page_endpoint,
    style_endpoint,
)
from gateway.tenancy.grants import KeyScope

RELAY_DEADLINE_S = 2.0
"""How long the end of the process waits for usage to leave it. What has not left waits in the journal."""
REFUSALS_DEADLINE_S = 2.0
"""How long it waits for the analytics store to take the last refusals. What that has not taken is lost."""


def create_app(
    settings: Settings, services: Services, admin: AdminApp | None = None, stages: Stages | None = None
) -> Starlette:
    """The ASGI application; its lifespan is that of the services. Without `admin`: no admin API, no console. `stages`:
    those that another listener of the process shares."""
    stages = stages or Stages.of(services, settings)
    chat = GenerationEndpoint(CHAT, stages)
    endpoints, runner = _endpoints(stages, chat), None
    if services.files is not None and services.batches is not None:
        lines = LineLog(services.journal)
        of_lines = line_endpoints(services, settings, lines)
        endpoints += batch_endpoints(services.files, services.batches, settings, of_lines)
        runner = open_runner(services, services.files, services.batches, of_lines, lines)
    policy = AccessPolicy(endpoints)
    app = Starlette(
        routes=[
            *(Route(each.path, each.app, methods=each.methods) for each in endpoints),
            *_open_routes(stages, admin),
        ],
        middleware=[
            *([Middleware(CrossOrigin, origins=settings.cors_origins)] if settings.cors_origins else []),
            Middleware(
                ErrorMiddleware,
                outcomes=services.metrics.outcomes,
                on_refusal=services.refusals.record,
                access=policy,
            ),
            *_doors(settings, stages, chat, admin),
            Middleware(Authorisation, authenticator=services.authenticator, access=policy),
            Middleware(
                BodyLimit,
                max_body_bytes=settings.max_body_bytes,
                larger={"/v1/files": settings.files.max_bytes + FORM_BYTES},
            ),
        ],
        exception_handlers={HTTPException: _answer_routing},
        lifespan=_lifespan(services, admin, runner),
    )
    # A redirect would repeat the client's Host header, and no client needs one.
    app.router.redirect_slashes = False
    return app


def create_local_app(services: Services, admin: AdminApp) -> ASGIApp:
    """The admin API for the users of this machine, on the Unix socket. It shares the services of `create_app`."""
    local = MountByPrefix(_unknown_path, ADMIN_PREFIX, PeerAuthentication(admin, os.getuid()))
    return ErrorMiddleware(local, services.metrics.outcomes, services.refusals.record, AccessPolicy())


def _doors(settings: Settings, stages: Stages, chat: ASGIApp, admin: AdminApp | None) -> list[Middleware]:
    """To the admin API, the console and vLLM's paths of adapters, where there are administrators."""
    if admin is None:
        return []
    adapters = LoraAdapters(admin)
    console = open_console(stages, admin, BodyLimit(chat, settings.max_body_bytes))
    return [
        Middleware(MountByPrefix, prefix=ADMIN_PREFIX, within=admin),
        Middleware(MountByPrefix, prefix=CONSOLE_PREFIX, within=console),
        Middleware(MountByPrefix, prefix=LOAD_PATH, within=adapters),
        Middleware(MountByPrefix, prefix=UNLOAD_PATH, within=adapters),
    ]


def _endpoints(stages: Stages, chat: ASGIApp) -> list[Endpoint]:
    """The endpoints of tenants' keys."""
    services = stages.services
    cards = ModelCards(services.engine, stages.names, services.adapters)
    responses = services.sessions.responses
    usage = frozenset({KeyScope.USAGE})
    completions = GenerationEndpoint(COMPLETIONS, stages)
    return [
        Endpoint("/v1/chat/completions", ["POST"], access.CHAT, chat),
        Endpoint("/v1/completions", ["POST"], frozenset({KeyScope.COMPLETIONS}), completions),
        Endpoint("/v1/messages", ["POST"], access.CHAT, GenerationEndpoint(MESSAGES, stages)),
        Endpoint("/v1/messages/count_tokens", ["POST"], access.CHAT, CountTokens(stages)),
        Endpoint("/v1/responses", ["POST"], access.CHAT, GenerationEndpoint(RESPONSES, stages)),
        Endpoint("/v1/responses/{id}", ["GET", "DELETE"], access.CHAT, OneResponse(responses)),
        Endpoint("/v1/responses/{id}/input_items", ["GET"], access.CHAT, InputItems(responses)),
        Endpoint("/v1/embeddings", ["POST"], frozenset({KeyScope.EMBEDDINGS}), EmbeddingsEndpoint(stages)),
        Endpoint("/v1/models", ["GET"], access.ANY_KEY, ListModels(cards)),
        Endpoint("/v1/models/{id:path}", ["GET"], access.ANY_KEY, RetrieveModel(cards)),
        Endpoint("/v1/tokenize", ["POST"], access.GENERATION, Tokenize(stages)),
        Endpoint("/v1/detokenize", ["POST"], access.GENERATION, Detokenize(stages)),
        Endpoint("/v1/sessions/{id:path}", ["GET", "DELETE"], access.CHAT, OneSession(services.sessions)),
        Endpoint("/v1/usage", ["GET"], usage, OwnUsage(services.analytics)),
        Endpoint("/v1/refusals", ["GET"], usage, OwnRefusals(services.analytics)),
        Endpoint("/v1/limits", ["GET"], usage, OwnLimits(services.limiter, stages.classes)),
    ]


def _open_routes(stages: Stages, admin: AdminApp | None) -> list[Route]:
    """Paths that need no key: `OPEN_PATHS`."""
    services = stages.services
    engine = services.engine

    def document() -> dict[str, Any]:
        return v1_document(next(iter(engine.models)))

    def documents() -> dict[str, dict[str, Any]]:
        return {DOCUMENT_PATH: document()} | ({} if admin is None else {ADMIN_DOCUMENT_PATH: admin.document()})

    return [
        Route("/", FrontPage(has_console=admin is not None), methods=["GET"]),
        Route(DOCUMENT_PATH, document_endpoint(document), methods=["GET"]),
        Route(PAGE_PATH, page_endpoint(documents), methods=["GET"]),
        Route(STYLE_PATH, style_endpoint(), methods=["GET"]),
        Route("/version", MadeBody(lambda: orjson.dumps({"version": version("turnpike")}), PUBLIC), methods=["GET"]),
        Route("/health", Healthz(services.upstreams), methods=["GET"]),
        Route("/healthz", Healthz(services.upstreams), methods=["GET"]),
        Route("/readyz", Readyz(engine, services.journal, services.drain), methods=["GET"]),
        Route("/metrics", Scrape(services.metrics, services.all_metrics), methods=["GET"]),
    ]


def _lifespan(
    services: Services, admin: AdminApp | None, runner: BatchRunner | None
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        services.prices.start()
        services.adapters.start()
        if services.relay is not None:
            services.relay.start()
        if services.books is not None:
            services.books.start()
        services.refusals.start()
        for upstream in services.upstreams:
            upstream.start()
        await asyncio.to_thread(services.engine.start)
        if runner is not None:
            runner.start()
        try:
            yield
        finally:
            if runner is not None:
                await runner.aclose()
            await asyncio.to_thread(services.engine.close)
            for upstream in services.upstreams:
                await upstream.aclose()
            await services.limiter.aclose()
            await services.sessions.aclose()
            await services.prices.aclose()
            await services.adapters.aclose()
            if services.books is not None:
                await services.books.aclose()
            if services.relay is not None:
                await services.relay.aclose(RELAY_DEADLINE_S)
            await services.journal.aclose()
            await services.refusals.aclose(REFUSALS_DEADLINE_S)
            await services.analytics.aclose()
            await services.authenticator.aclose()
            services.texts.close()
            if admin is not None:
                await admin.aclose()

    return lifespan


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found()


async def _answer_routing(request: Request, error: Exception) -> Response:
    """The router's 404 and 405."""
    answer = as_api_error(error)
    assert answer is not None
    request_state(request.scope).error = answer.code
    status, body = format_error(request.scope, answer)
    return Response(body, status, answer.headers, "application/json")
