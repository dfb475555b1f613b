"""A server in a process of its own: started, stopped while others are measured, ended."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_SECONDS = 600.0
_END_SECONDS = 20.0
_METRICS_SECONDS = 60.0
_LOG_LINES = 15


class ServerFailed(Exception):
    """It did not come up. The last lines of its log are in the message."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Command of a server: `environment` is added to this process's. It serves the model `model` at `port`."""

    command: Sequence[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


class Server:
    """A running server; `start_s` is from its start to its first token."""

    def __init__(self, launch: Launch, process: "subprocess.Popen[bytes]", start_s: float) -> None:
        self.launch, self.start_s = launch, start_s
        self._process = process

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def resident_mib(self) -> float:
        """Of all its processes together; what they share counts for each."""
        return sum(_resident_kib(pid) for pid in _session(self._process.pid)) / 1024

    def metric(self, name: str) -> float:
        """Its sum over all labels, of what `/metrics` answers."""
        text = httpx.get(f"{self.launch.url.removesuffix('/v1')}/metrics", timeout=_METRICS_SECONDS).text
        lines = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def running(launch: Launch, log: Path) -> Iterator[Server]:
    """
    Raises:
        ServerFailed: it ended, or gave no token within `START_SECONDS`.
    """
    began_s = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(launch.environment),
            start_new_session=True,
        )
    try:
        _await_first_token(launch, process, log)
        yield Server(launch, process, time.perf_counter() - began_s)
    finally:
        _end(process)


def _await_first_token(launch: Launch, process: "subprocess.Popen[bytes]", log: Path) -> None:
    body = {"model": "model", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "ignore_eos": True}
    headers = {} if launch.key is None else {"authorization": f"Bearer {launch.key}"}
    deadline_s = time.monotonic() + START_SECONDS
    answer = "no answer"
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            response = httpx.post(f"{launch.url}/chat/completions", json=body, headers=headers, timeout=START_SECONDS)
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if response.status_code == 200:
            return
        answer = f"HTTP {response.status_code}"
        time.sleep(0.05)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    raise ServerFailed("\n".join([f"{launch.command[0]} does not serve ({answer}); its log {log} ends:", *lines]))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It and all that it has started, which may be stopped just now."""
    for each, patience_s in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, None)):
        for number in (each, signal.SIGCONT):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue


def _session(leader: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == leader:
                yield int(entry.name)
        except ProcessLookupError:
            continue


def _resident_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
