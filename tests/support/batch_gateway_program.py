"""A gateway in a process of its own that runs batches: `python -m tests.support.batch_gateway_program FOLDER 0 0.01`.

The arguments: a folder, which several share; the index of the process; seconds a token of the fake engine. It prints
its port when it serves, and serves until its standard input ends.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from tests.support.batch_app import BatchGateway

LEASE_S = 1.0


def gateway_of(folder: Path, index: int = 0, pace_s: float = 0.0) -> BatchGateway:
    """The gateway that the program serves."""
    settings = {"batches": {"lease_s": LEASE_S, "concurrency": 8}}
    gateway = BatchGateway(folder, index=index, settings=settings)
    gateway.engine.pace_s = pace_s
    return gateway


@contextmanager
def running(folder: Path, index: int = 0, pace_s: float = 0.0) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL of the program, and its process. It is killed at the end, if it has not ended."""
    command = [sys.executable, "-m", "tests.support.batch_gateway_program", str(folder), str(index), str(pace_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().decode().strip()
        assert port.isdecimal(), f"the gateway does not serve: {port!r}"
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    folder, index, pace_s = sys.argv[1:4]
    with gateway_of(Path(folder), int(index), float(pace_s)).serving() as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
