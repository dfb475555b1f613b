"""From the gateway's services to the console."""

from starlette.types import ASGIApp

from gateway.admin.app import AdminApp
from gateway.console.app import ConsoleApp
from gateway.console.context import ConsoleContext
from gateway.console.endings import EndedSessions
from gateway.console.login import Gatekeeper
from gateway.console.pages import every_passage, every_screen
from gateway.generation.stages import Stages


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
        sessions=services.sessions,
        chat=chat,
        now=admin.context.now,
    )
    ended = EndedSessions(admin.context.database, admin.context.now)
    gatekeeper = Gatekeeper(admin, services.authenticator, ended, admin.context.pepper, admin.context.now)
    return ConsoleApp(admin.operations, gatekeeper, every_screen(context), every_passage(context))
