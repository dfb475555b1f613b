"""A process that has imported everything and forks gateways and sinks, so that one is there in no time.

It reads commands from its standard input, a line each, and answers each with a line: `gateway SETTINGS` with a process
id and a port, `sink SETTINGS` with a process id, `end PID SIGNAL` with the exit status once the process is gone. Its
settings are those of its environment, and on top of them each one's own, a JSON object. What it forked does not outlive
it.
"""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import clickhouse_connect  # noqa: F401 the sink's client, imported where it is first used
import kafka  # noqa: F401 likewise

import gateway.process.serve
import gateway.process.serving  # what is imported now is there in every process
from engine.scheduling.stats import SchedulerStats
from gateway.config.settings import Settings, load_settings
from gateway.process.listener import bind
from gateway.process.sink_service import run_sink
from gateway.process.termination import Termination
from tests.support.fake_engine import FakeEngine
from tests.support.fake_model import FakeModel

MODEL = "tiny"
WINDOW = 4096
REPLY = "the quick brown fox jumps over the lazy dog " * 20
PACE_S = 0.005
SINK_MEMBER = "killed"


class Gateway(NamedTuple):
    pid: int
    port: int


class Zygote:
    """The parent's side."""

    def __init__(self, environment: Mapping[str, str], log: Path, *, real_engine: bool = False) -> None:
        """`real_engine`: with the models of the settings, in place of one that makes a token of each byte."""
        self._log = log
        engine = "real" if real_engine else "paced"
        command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.kill.zygote", str(log), engine]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def gateway(self, **settings: float) -> Gateway:
        """Its address is bound; it listens when it is ready to serve."""
        pid, port = self._ask(f"gateway {json.dumps(settings)}").split()
        return Gateway(int(pid), int(port))

    def sink(self) -> int:
        return int(self._ask("sink {}"))

    def end(self, pid: int, number: int = signal.SIGKILL) -> int:
        """Send a signal; returns when the process is gone, with its exit status, or less a signal's number."""
        return int(self._ask(f"end {pid} {int(number)}"))

    def close(self) -> None:
        """Kill all that is left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"a process did not start: {self._log.read_text(errors='replace')[-4000:]}"
        return answer


class PacedEngine(FakeEngine):
    """A token for each byte of the reply, at a steady pace."""

    def __init__(self) -> None:
        super().__init__()
        self.models = {MODEL: FakeModel(MODEL, WINDOW)}  # type: ignore[assignment]
        self.reply = REPLY
        self.pace_s = PACE_S

    def stats(self) -> Mapping[str, SchedulerStats]:
        return {}


def _run_gateway(settings: Settings, answer_fd: int) -> None:
    listener = bind("127.0.0.1", 0)
    os.write(answer_fd, f"{os.getpid()} {listener.getsockname()[1]}\n".encode())
    os.close(answer_fd)
    with Termination() as termination:
        gateway.process.serve.run(settings, listener, termination)


def _run_sink(settings: Settings, answer_fd: int) -> None:
    os.write(answer_fd, f"{os.getpid()}\n".encode())
    os.close(answer_fd)
    asyncio.run(run_sink(settings, member=SINK_MEMBER))


def _fork(target: Callable[[Settings, int], None], settings: Settings, log_fd: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        answer_fd = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        target(settings, answer_fd)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    settings = load_settings()
    log_fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if sys.argv[2] == "paced":
        gateway.process.serve.load_engine = lambda *_: PacedEngine()  # type: ignore[assignment, return-value]
    targets = {"gateway": _run_gateway, "sink": _run_sink}
    alive: set[int] = set()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        command, _, arguments = line.partition(" ")
        if command in targets:
            own = settings.model_copy(update=json.loads(arguments))
            alive.add(_fork(targets[command], own, log_fd))  # the child answers
            continue
        pid, number = map(int, arguments.split())
        os.kill(pid, number)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        alive.remove(pid)
        print(status, flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
