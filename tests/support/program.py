"""The whole program as a user runs it: `turnpike` in processes of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.servers import free_port

TURNPIKE = Path(sys.executable).with_name("turnpike")
_START_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Program:
    """A running server. `key` belongs to the tenant `acme`."""

    url: str
    key: str
    data_dir: Path
    process: subprocess.Popen[bytes]
    log: Path

    def command(self, *arguments: str) -> str:
        return turnpike(*arguments, "--data-dir", str(self.data_dir))

    def metric(self, name: str) -> float:
        """The sum of a metric's values over all label sets."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, no block is held."""
        busy = self.metric("turnpike_sequences_running") + self.metric("turnpike_sequences_waiting")
        return busy == 0 and self.metric("turnpike_kv_blocks") == self.metric("turnpike_kv_blocks_free")

    def wait_idle(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.idle:
            assert time.monotonic() < deadline, "the server does not come to rest"
            time.sleep(0.02)


def turnpike(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        [TURNPIKE, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def running(
    data_dir: Path,
    *arguments: str,
    program: Sequence[str] = (str(TURNPIKE),),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """A server with prices, a tenant and a key, from its start to SIGTERM; it must leave with exit code 0.

    `program` is what `serve` is said to, in an environment with more in it.
    """
    url = f"http://127.0.0.1:{free_port()}"
    log = data_dir / "server.log"
    data_dir.mkdir(parents=True, exist_ok=True)
    turnpike("db", "upgrade", "--data-dir", str(data_dir))
    turnpike("tenant", "create", "acme", "--tier", "premium", "--data-dir", str(data_dir))
    key = turnpike("key", "create", "--tenant", "acme", "--data-dir", str(data_dir))
    for model in [argument.partition("=")[0] for argument in arguments if "=" in argument]:
        prices = ("--input", "0.1", "--cached", "0.05", "--output", "0.4")
        turnpike("price", "set", model, *prices, "--data-dir", str(data_dir))
    command = [*program, "serve", "--port", url.rpartition(":")[2], "--data-dir", str(data_dir), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    running_program = Program(url, key, data_dir, process, log)
    try:
        _await_ready(running_program)
        yield running_program
        process.terminate()
        assert process.wait(timeout=30) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _await_ready(program: Program) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        assert program.process.poll() is None, program.log.read_text()
        assert time.monotonic() < deadline, program.log.read_text()
        try:
            if httpx.get(f"{program.url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
