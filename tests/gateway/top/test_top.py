"""The command: one frame for scripts, and the live view in a terminal of its own."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.management.cli import app
from tests.gateway.top.served import Served, serving
from tests.support.servers import free_port

TURNPIKE = Path(sys.executable).with_name("turnpike")


def test_one_frame_for_a_script() -> None:
    with serving(Served(), free_port()) as url:
        result = CliRunner().invoke(app, ["top", "--url", f"{url}/v1", "--interval", "0.1"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"turnpike {version('turnpike')}  http")
    assert "large (1 of 2)" in result.stdout
    assert "\x1b" not in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://"])
def test_nobody_there(url: str) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--url", url])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"turnpike: {url} does not answer: ")
    assert result.stderr.count("\n") == 1


class Terminal:
    """`turnpike top` in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            [TURNPIKE, "top", *arguments], stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}
        )
        self.seen = ""

    @property
    def mode(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def until(self, words: str) -> None:
        """Until the terminal has been sent these words since the last call."""
        deadline = time.monotonic() + 60
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen[-4000:]
            self._read(1.0)
        self.seen = ""

    def exit_code(self) -> int:
        """Exit code, once it has ended. Its output is read until then: a full terminal would block the process."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen[-4000:]
            self._read(0.05)
        return self.process.returncode

    def _read(self, seconds: float) -> None:
        waiting = select.poll()  # as `select.select` takes no descriptor over 1023
        waiting.register(self._master, select.POLLIN)
        if waiting.poll(seconds * 1e3):
            self.seen += os.read(self._master, 65536).decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def terminal(port: int) -> Iterator[Terminal]:
    terminal = Terminal("--url", f"http://127.0.0.1:{port}", "--interval", "0.1")
    yield terminal
    terminal.close()


def test_a_server_that_comes_and_goes_and_the_keys(terminal: Terminal, port: int) -> None:
    terminal.until("cannot connect")
    with serving(Served(), port):
        terminal.until("large")
        terminal.press("2")
        terminal.until("small")
        terminal.press("1")
        terminal.until("large")
        terminal.press("p")
        terminal.until("PAUSED")
        terminal.press("p")
        terminal.resize(60, 20)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until("ready")
    terminal.until("NOT ANSWERING")
    with serving(Served(), port):
        terminal.until("ready")
        terminal.press("q")
        assert terminal.exit_code() == 0
    assert terminal.mode == terminal.before


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.until("cannot connect")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.exit_code() == 0
    assert terminal.mode == terminal.before
