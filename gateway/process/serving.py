"""Serves with a loaded engine, and prepares the database before it is loaded."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import structlog
import uvloop

from gateway.app import create_app, create_local_app
from gateway.config.listen_address import ListenAddress
from gateway.config.safety import refuse_unsafe
from gateway.config.settings import Settings
from gateway.extras import require
from gateway.generation.service_classes import TierClasses
from gateway.generation.stages import Stages
from gateway.management.console.links import ConsoleLinks
from gateway.management.http.app import AdminApp
from gateway.management.operations.change import Changes, command_line_actor
from gateway.management.operations.local import LocalOperations, current_user
from gateway.management.operations.roles import Role
from gateway.process.admin_socket import AdminSocket
from gateway.process.demo_banner import demo_banner
from gateway.process.listener import bind, local_url
from gateway.process.opening import open_prices, open_services
from gateway.process.process_metrics import ProcessMetrics, StartsCollector
from gateway.process.process_start import ProcessStart, SupervisorLink
from gateway.process.server import CallListener, Server
from gateway.process.termination import DrainSignal
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade
from gateway.upstreams.fleet import LocalEngine

DEMO_TENANT = "demo"

_log = structlog.get_logger("turnpike.serve")


async def prepare_database(settings: Settings, pepper: bytes, *, free: bool) -> None:
    """Migrate the tables. A model without a price gets the price 0 if `free`, and else is rejected before it is loaded.

    Raises:
        Unpriced: a model of the settings has no price.
    """
    url = settings.database_url.get_secret_value()
    await upgrade(url)
    database = open_database(url)
    try:
        await open_prices(settings, settings.served_names, database, Changes(database, pepper), free=free)
    finally:
        await database.dispose()


def serve(
    settings: Settings,
    engine: LocalEngine | None,
    pepper: bytes,
    listener: socket.socket,
    termination: DrainSignal,
    *,
    demo: bool = False,
    start: ProcessStart | None = None,
) -> None:
    """Serve on `listener` until the end of the drain that `termination` starts; see `gateway.process.serve.run`.
    `start`: of this process, if it is one of several."""
    url = local_url(listener)

    def announce(demo_key: str | None) -> None:
        if isinstance(termination, SupervisorLink):
            termination.ready()
            termination.send_heartbeats()
            return
        models = [*(() if engine is None else engine.models), *settings.upstreams]
        _log.info("ready", url=url, models=models)
        if demo_key is not None:
            print(demo_banner(url, models[0], demo_key, settings.data_dir, settings.models_dir), flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, engine, pepper, listener, termination, announce, demo=demo, start=start))


def open_grpc(settings: Settings, stages: Stages, pepper: bytes, *, demo: bool) -> CallListener | None:
    """The gRPC listener of the settings, bound; None: they have none.

    Raises:
        MissingExtra: the extra `grpc` is not installed.
        OperatorError: the address cannot be used, or is unsafe.
    """
    if settings.grpc_listen is None:
        return None
    require("grpc", "grpc_listen")
    from gateway.grpc.inference_listener import InferenceListener

    address = ListenAddress.parse(settings.grpc_listen)
    with closing(bind(address.host, 0)) as probe:
        refuse_unsafe(probe.getsockname()[0], pepper, demo=demo)
    return InferenceListener(stages, address)


async def console_link(admin: AdminApp, url: str) -> str:
    """A link that logs in to the console of the gateway at `url` once, within 10 minutes, as an administrator."""
    user = current_user()
    links = ConsoleLinks(admin.context.database, admin.context.pepper, admin.context.now)
    return (await links.create(url, Role.ADMIN, user, command_line_actor(user))).url


async def make_demo_key(admin: AdminApp, tier: str) -> str:
    """A new key of the demo's tenant, which is created in `tier` if missing."""
    operations = LocalOperations(admin.context, admin.operations)
    listed = await operations.read("listTenants", query={"name": DEMO_TENANT})
    tenant = next(iter(listed["data"]), None)
    if tenant is None:
        tenant = await operations.change("createTenant", body={"name": DEMO_TENANT, "tier": tier})
    created = await operations.change("createKey", {"tenant_id": tenant["id"]}, {"name": "turnpike serve --demo"})
    return str(created["key"])


async def _serve(
    settings: Settings,
    engine: LocalEngine | None,
    pepper: bytes,
    listener: socket.socket,
    termination: DrainSignal,
    announce: Callable[[str | None], None],
    *,
    demo: bool,
    start: ProcessStart | None,
) -> None:
    database = open_database(settings.database_url.get_secret_value())
    serves_commands = start is None or start.index == 0
    admin_socket = AdminSocket.bind(settings.data_dir) if serves_commands else None
    shared: ProcessMetrics | None = None
    try:
        services, admin = await open_services(settings, engine, database, pepper, shares_engine=start is not None)
        if start is not None:
            services.metrics.registry.register(StartsCollector(start.starts_total))
            shared = ProcessMetrics(settings.data_dir, start.index, start.count, services.metrics.render, engine)
            await shared.start()
            services = replace(services, all_metrics=shared)
        demo_key = await make_demo_key(admin, TierClasses(settings).default_tier) if demo else None
        link = await console_link(admin, local_url(listener)) if demo else None

        def on_ready() -> None:
            announce(demo_key)
            if link is not None:
                print(f"The console, for one login within 10 minutes:\n\n{link}\n", flush=True)

        stages = Stages.of(services, settings)
        server = Server(
            create_app(settings, services, admin, stages),
            services.drain,
            delay_s=settings.drain_delay_s,
            deadline_s=settings.shutdown_deadline_s,
            on_ready=on_ready,
            trusted_proxies=[str(network) for network in settings.trusted_proxies],
            local=None if admin_socket is None else (admin_socket, create_local_app(services, admin)),
            calls=open_grpc(settings, stages, pepper, demo=demo),
        )
        # Before it listens: the first request may come before `on_ready`.
        termination.begins(server.begin_drain)
        await server.serve(sockets=[listener])
    finally:
        if shared is not None:
            await shared.aclose()
        if admin_socket is not None:
            admin_socket.close()
        await database.dispose()
