"""`turnpike worker`: models on this machine, for gateways here and on others."""

import asyncio
import ssl

import structlog

from engine.engine import Engine
from engine.workers.listener import WorkerListener
from engine.workers.remote_link import Address
from engine.workers.tls import server_context
from engine.workers.unix_address import UnixAddress
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.process.engine_loading import load_engine_here, tls_files
from gateway.process.progress import progress
from gateway.process.termination import Termination
from gateway.telemetry.logs import configure_logging

_log = structlog.get_logger("turnpike.worker")


def run_worker(settings: Settings, address: Address | UnixAddress, termination: Termination) -> None:
    """Load the settings' models and serve them on `address` until the end of the drain that `termination` begins.

    Raises:
        OperatorError: the address, a certificate or a model cannot be used; or the address is not of this machine
            alone, and there is no TLS.
    """
    configure_logging(settings.log_level, settings.log_format, settings.secret_values())
    context = _context(settings, address)
    with progress() as report:
        engine = load_engine_here(settings, report)
    with engine:
        asyncio.run(_serve(settings, engine, address, context, termination))


def _context(settings: Settings, address: Address | UnixAddress) -> ssl.SSLContext | None:
    if settings.worker_tls is None:
        if not address.is_local:
            raise OperatorError(f"--listen {address}: all that reach it could use the models; set worker_tls")
        return None
    try:
        return server_context(tls_files(settings.worker_tls))
    except OSError as error:
        raise OperatorError(f"worker_tls: {error}") from error


async def _serve(
    settings: Settings,
    engine: Engine,
    address: Address | UnixAddress,
    context: ssl.SSLContext | None,
    termination: Termination,
) -> None:
    listener, loop = WorkerListener(engine), asyncio.get_running_loop()
    try:
        if isinstance(address, UnixAddress):
            await listener.listen_on_file(address)
        else:
            await listener.listen(address.host, address.port, context)
            address = Address(address.host, listener.port)
    except OSError as error:
        raise OperatorError(f"cannot listen on {address}: {error.strerror or error}") from error
    draining = asyncio.Event()

    def begin() -> None:
        loop.call_soon_threadsafe(draining.set)

    termination.begins(begin)
    _log.info("ready", address=str(address), models=list(engine.models))
    running, drain = asyncio.create_task(listener.run()), asyncio.create_task(draining.wait())
    await asyncio.wait((running, drain), return_when=asyncio.FIRST_COMPLETED)
    if draining.is_set():
        _log.info("draining")
        await listener.drain(settings.shutdown_deadline_s)
    drain.cancel()
    await listener.close()
    await running
    if not draining.is_set():
        raise OperatorError("the engine has ended; its reason is in the log")
    _log.info("stopped")
