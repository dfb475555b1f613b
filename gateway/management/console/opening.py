"""From the gateway's services to the console."""

from starlette.types import ASGIApp

from gateway.generation.stages import Stages
from gateway.management.console.app import ConsoleApp
from gateway.management.console.context import ConsoleContext
from gateway.management.console.links import ConsoleLinks
from gateway.management.console.login import SessionAuth
from gateway.management.console.pages import every_passage, every_screen
from gateway.management.console.revocations import SessionRevocations
from gateway.management.console.sessions import ConsoleSessions
from gateway.management.http.app import AdminApp


def open_console(stages: Stages, admin: AdminApp, chat: ASGIApp) -> ConsoleApp:
    services = stages.services
    context = ConsoleContext(
        operations=admin.operations,
        admin=admin.context,
        engine=services.engine,
        limiter=services.limiter,
        classes=stages.classes,
        names=stages.names,
        score=stages.routes.score,
        prices=services.prices,
        journal=services.journal,
        analytics=services.analytics,
        relay=services.relay,
        books=services.books,
        sessions=services.sessions,
        chat=chat,
        authenticator=services.authenticator,
        adapters=services.adapters,
        upstreams={upstream.name: upstream for upstream in services.upstreams},
        console_sessions=ConsoleSessions(admin.context.pepper, admin.context.now),
        registry=services.metrics.registry,
        settings=stages.settings,
        now=admin.context.now,
    )
    ended = SessionRevocations(admin.context.database, admin.context.now)
    links = ConsoleLinks(admin.context.database, admin.context.pepper, admin.context.now)
    session_auth = SessionAuth(admin, services.authenticator, ended, links, admin.context.pepper, admin.context.now)
    return ConsoleApp(
        admin.operations, session_auth, every_screen(context), every_passage(context), serve_admin=admin.serve
    )
