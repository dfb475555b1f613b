"""One of several gateway processes: `python -m gateway.process.gateway_process CONNECTION LISTENER`.

The arguments are descriptors: of the connection to the supervisor, and of a socket on the port that all share.
"""

import faulthandler
import gc
import signal
import socket
import sys

import structlog

from gateway.errors import OperatorError
from gateway.process.memory_trim import DATA_FRAMES, block_imports, collecting_nothing, trim_after_startup
from gateway.process.process_start import STACKS, ProcessStart, SupervisorLink, receive_start
from gateway.process.serve import GC_ALLOCATIONS, configure_logs, with_default_pairs
from gateway.process.termination import SIGNALS


def main() -> None:
    # Sent to all processes of a terminal or of a service: the supervisor begins the drain.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(STACKS, all_threads=True)
    connection, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    start = receive_start(connection)
    link = SupervisorLink(connection)
    try:
        _serve(start, listener, link)
    except OperatorError as error:
        link.failed(str(error))
        raise SystemExit(1) from None


def _serve(start: ProcessStart, listener: socket.socket, link: SupervisorLink) -> None:
    configure_logs(start.settings, start.pepper)
    structlog.contextvars.bind_contextvars(process=start.index)
    block_imports(DATA_FRAMES)
    with collecting_nothing():
        from gateway.process import serving
        from gateway.process.engine_loading import connect_engine

        engine = connect_engine(start.settings, lambda *_: None, start.engine_socket, start.salt_key)
        trim_after_startup()
        gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
    settings = with_default_pairs(start.settings, engine)
    serving.serve(settings, engine, start.pepper, listener, link, start=start)


if __name__ == "__main__":
    main()
