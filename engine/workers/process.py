"""A worker as a child process: `python -m engine.workers.process FD`.

FD is its end of a socket pair, of which the first frame is a `Start`. It ends with the connection, however that ends,
and so do the connections of the further clients that it may have.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.engine import Engine
from engine.runtime.model_loading import LoadProgress
from engine.workers.frames import FrameReader, FrameWriter, read_first
from engine.workers.listener import WorkerListener
from engine.workers.messages import Failed, Loading, Log, Start, decode_to_worker, encode
from engine.workers.server import WorkerServer, ready_message
from engine.workers.unix_address import UnixAddress
from kernels.dispatch import gpu_memory_bytes

_GC_ALLOCATIONS = 20_000
"""Net allocations between collections of the young generation."""
_EXIT_SECONDS = 5.0
"""Time to free the device after the client has gone, before the process ends regardless."""


class _LogSender(logging.Handler):
    """Sends records to the client, which logs them with its own."""

    def __init__(self, writer: FrameWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
        self._writer.send(encode(Log(record.name, record.levelno, message)))


Load = Callable[[Start, LoadProgress], Engine]


def load_models(start: Start, progress: LoadProgress) -> Engine:
    """See `Engine.load`."""
    config = start.config
    if start.sizes is not None:
        sizes = start.sizes.on(gpu_memory_bytes(config.device))
        config = replace(config, scheduler=replace(config.scheduler, **sizes._asdict()))
    return Engine.load(start.models, config, progress)


def main(load: Load = load_models) -> None:
    """The process. `load` makes its engine."""
    # Sent to all processes of a terminal or of a service: the client ends this one after its requests.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    writer = FrameWriter(connection)
    reader = FrameReader()
    start, *rest = map(decode_to_worker, read_first(connection, reader))
    assert isinstance(start, Start), f"the first message is {start}"
    assert not rest, "a message precedes the answer to the first"
    logging.basicConfig(level=start.log_level, handlers=[_LogSender(writer)])
    try:
        engine = load(start, partial(_report, writer))
    except Exception as error:
        writer.send(encode(Failed(type(error).__name__, str(error))))
        logging.debug("the models cannot be loaded", exc_info=True)
        raise SystemExit(1) from None
    engine.start()
    # The objects so far stay alive. A full collection over them would hold a step for tens of milliseconds.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS, *gc.get_threshold()[1:])
    asyncio.run(_serve(engine, connection, writer, start.listen))
    # What hangs in a device's driver is not waited for.
    end = threading.Timer(_EXIT_SECONDS, os._exit, [1])
    end.daemon = True
    end.start()
    engine.close()
    os._exit(0)


async def _serve(engine: Engine, connection: socket.socket, writer: FrameWriter, listen: Path | None) -> None:
    """Serve the client at `connection` until it has gone, and those that come to the file `listen` until then."""
    listener = None if listen is None else WorkerListener(engine)
    try:
        if listener is not None and listen is not None:
            await listener.listen_on_file(UnixAddress(listen))
    except OSError as error:
        writer.send(encode(Failed(type(error).__name__, f"cannot listen on {listen}: {error.strerror or error}")))
        return
    writer.send(encode(ready_message(engine)))
    await WorkerServer(engine.core, engine.models, writer).serve(connection)
    if listener is not None:
        await listener.close()


def _report(writer: FrameWriter, name: str, done: int, total: int) -> None:
    if not writer.send(encode(Loading(name, done, total))):
        os._exit(1)  # the client has gone


if __name__ == "__main__":
    main()
