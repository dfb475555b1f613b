"""A ClickHouse server for tests: the engine of chDB behind ClickHouse's HTTP interface, in a process of its own."""

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import clickhouse_connect

from tests.support.servers import free_port

START_DEADLINE_S = 60
ROOT = Path(__file__).parents[2]


class ClickHouseServer:
    """A server that can be stopped, killed and started again on what it had written."""

    user = "turnpike"
    password = "k:p@ss/w rd"  # what a URL must quote

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def url(self, database: str = "default", *, port: int | None = None) -> str:
        """`port`: of a proxy in front of it."""
        return f"http://{self.user}:{quote(self.password, safe='')}@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """An empty database of its own; its URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        client = clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, username=self.user, password=self.password
        )
        client.command(f"CREATE DATABASE {name}")
        client.close()
        return self.url(name)

    def start(self) -> None:
        assert self._process is None
        arguments = [str(self._folder / "data"), str(self.port), self.user, self.password]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.clickhouse_app", *arguments],
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"the ClickHouse server does not answer: {self._log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        self._end(kill=False)

    def kill(self) -> None:
        self._end(kill=True)

    def kill_before_storing(self, part: Path) -> None:
        """Kill it, and leave on the disk what is there if that happens while a batch is stored: a table writes the
        batch's token to its log, and then renames `part`, a folder, to what it is called from there on."""
        self.kill()
        part.rename(part.with_name(f"tmp_insert_{part.name}"))

    def _end(self, *, kill: bool) -> None:
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def running_clickhouse() -> Iterator[ClickHouseServer]:
    with tempfile.TemporaryDirectory(prefix="turnpike-clickhouse-", ignore_cleanup_errors=True) as folder:
        server = ClickHouseServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()  # its data is thrown away, and to end in good order takes it seconds
