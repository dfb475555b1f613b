"""`turnpike worker`: models on this machine, for gateways here and on others."""

import asyncio
import ssl
from typing import TYPE_CHECKING

import structlog

from engine.engine import Engine
from engine.workers.listener import WorkerListener
from engine.workers.remote_link import Address
from engine.workers.tls import server_context
from engine.workers.unix_address import UnixAddress
from gateway.config.listen_address import ListenAddress
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.extras import require
from gateway.process.engine_loading import load_engine_here, tls_files
from gateway.process.progress import progress
from gateway.process.termination import Termination
from gateway.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from gateway.grpc.vllm_listener import VllmListener

_log = structlog.get_logger("turnpike.worker")


def run_worker(
    settings: Settings,
    address: Address | UnixAddress,
    termination: Termination,
    grpc_address: ListenAddress | None = None,
    lease_seconds: float | None = None,
) -> None:
    """Load the settings' models and serve them on `address` until the end of the drain that `termination` begins, or
    until there was no client for `lease_seconds`. `grpc_address`: serve vLLM's engine protocol on it, too.

    Raises:
        OperatorError: an address, a certificate or a model cannot be used; an address is not of this machine alone,
            and there is no TLS; or there is gRPC and the extra is missing or several models are there.
    """
    if grpc_address is not None:
        require("grpc", "--grpc")
    configure_logging(settings.log_level, settings.log_format, settings.secret_values())
    context = _context(settings, address)
    with progress() as report:
        engine = load_engine_here(settings, report)
    with engine:
        asyncio.run(_serve(settings, engine, address, context, termination, grpc_address, lease_seconds))


def _context(settings: Settings, address: Address | UnixAddress) -> ssl.SSLContext | None:
    if settings.worker_tls is None:
        if not address.is_local:
            raise OperatorError(f"--listen {address}: all that reach it could use the models; set worker_tls")
        return None
    try:
        return server_context(tls_files(settings.worker_tls))
    except OSError as error:
        raise OperatorError(f"worker_tls: {error}") from error


def _open_grpc(settings: Settings, engine: Engine, address: ListenAddress | None) -> "VllmListener | None":
    if address is None:
        return None
    from gateway.grpc.vllm_listener import VllmListener

    return VllmListener(settings, engine, address)


async def _serve(
    settings: Settings,
    engine: Engine,
    address: Address | UnixAddress,
    context: ssl.SSLContext | None,
    termination: Termination,
    grpc_address: ListenAddress | None,
    lease_seconds: float | None,
) -> None:
    listener, loop = WorkerListener(engine), asyncio.get_running_loop()
    calls = _open_grpc(settings, engine, grpc_address)
    try:
        if isinstance(address, UnixAddress):
            await listener.listen_on_file(address)
        else:
            await listener.listen(address.host, address.port, context)
            address = Address(address.host, listener.port)
    except OSError as error:
        raise OperatorError(f"cannot listen on {address}: {error.strerror or error}") from error
    if calls is not None:
        await calls.start()
    draining = asyncio.Event()

    def begin() -> None:
        loop.call_soon_threadsafe(draining.set)

    termination.begins(begin)
    _log.info("ready", address=str(address), models=list(engine.models))
    running, drain = asyncio.create_task(listener.run()), asyncio.create_task(draining.wait())
    lease = asyncio.create_task(_expire(listener, lease_seconds, draining))
    await asyncio.wait((running, drain), return_when=asyncio.FIRST_COMPLETED)
    lease.cancel()
    if draining.is_set():
        _log.info("draining")
        drains = [listener.drain(settings.shutdown_deadline_s)]
        if calls is not None:
            drains.append(calls.drain(settings.shutdown_deadline_s))
        await asyncio.gather(*drains)
    drain.cancel()
    if calls is not None:
        await calls.aclose()
    await listener.close()
    await running
    if not draining.is_set():
        raise OperatorError("the engine has ended; its reason is in the log")
    _log.info("stopped")


async def _expire(listener: WorkerListener, seconds: float | None, draining: asyncio.Event) -> None:
    """Begin the drain once there was no client for `seconds`: whatever has started this worker is gone."""
    loop = asyncio.get_running_loop()
    seen = loop.time()
    while seconds is not None:
        await asyncio.sleep(min(1.0, seconds / 4))
        if listener.clients:
            seen = loop.time()
        elif loop.time() - seen > seconds:
            _log.info("the lease has expired", seconds=seconds)
            draining.set()
            return
