"""The driver's process, as `turnpike up` has it: it is started again where it ends or is silent."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from engine.workers.supervisor import backoff_seconds
from gateway.cluster.orders import Orders, Reports

DRIVER = "gateway.cluster.ray_driver"
START_SECONDS = 120.0
SILENCE_SECONDS = 20.0
STOP_SECONDS = 15.0


class DriverProcess:
    """One driver after another. Used by one thread."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        clock: Callable[[], float] = time.monotonic,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """`command`: the driver's. `log`: of its standard error. `silence_seconds`: without reports, after which it is
        killed."""
        self._command = list(command)
        self.log = log
        self._clock = clock
        self._silence_s = silence_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._heard_s = 0.0
        self._spoke = False
        self._failures = 0
        self._next_s = 0.0
        self._sent: Orders | None = None
        self.starts_total = 0

    @property
    def pid(self) -> int | None:
        """Of the current driver."""
        return None if self._process is None else self._process.pid

    def exchange(self, orders: Orders) -> Reports | None:
        """Send orders that have changed, and return the last reports; None: there are no new ones. Starts a driver
        where there is none."""
        now_s = self._clock()
        if self._process is not None and self._is_lost(now_s):
            self._end(now_s)
        if self._process is None:
            if now_s < self._next_s:
                return None
            self._start(now_s)
        if orders != self._sent:
            self._send(orders)
        return self._receive(now_s)

    def last_words(self) -> str:
        """The end of the log."""
        try:
            return self.log.read_bytes()[-2000:].decode(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        """End the driver, and a head that it has started. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(STOP_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            _kill(process)

    def _is_lost(self, now_s: float) -> bool:
        assert self._process is not None
        patience_s = self._silence_s if self._spoke else START_SECONDS
        return self._process.poll() is not None or now_s - self._heard_s > patience_s

    def _end(self, now_s: float) -> None:
        assert self._process is not None
        _kill(self._process)
        self._process = None
        self._failures = 0 if self._spoke else self._failures + 1
        self._next_s = now_s + max(backoff_seconds(self._failures), 0.5)

    def _start(self, now_s: float) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, sys.path))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C on the terminal is for `up`, which ends the workers by the driver
            )
        self.starts_total += 1
        self._heard_s, self._spoke, self._sent = now_s, False, None
        threading.Thread(target=self._read, args=(self._process, self.starts_total), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes], number: int) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put((number, line))

    def _send(self, orders: Orders) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which the next exchange notices
            self._process.stdin.write(msgspec.json.encode(orders) + b"\n")
            self._process.stdin.flush()
            self._sent = orders

    def _receive(self, now_s: float) -> Reports | None:
        reports = None
        while not self._lines.empty():
            number, line = self._lines.get()
            if number == self.starts_total:
                reports = msgspec.json.decode(line, type=Reports)
                self._heard_s, self._spoke = now_s, True
        return reports


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):  # it has left orders unread
        process.stdin.close()


def ray_command(address: str) -> list[str]:
    """The command of the driver at a head's address."""
    return [sys.executable, "-m", DRIVER, address]
