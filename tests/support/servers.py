"""Real servers for tests: started on a free loopback port, thrown away at the end."""

import asyncio
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import asyncpg

START_DEADLINE_S = 60


class ServerMissing(Exception):
    """The server's program is not on this machine; the message says what to install."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """A PostgreSQL cluster that can be stopped and started. It runs as user `postgres` where the tests run as root,
    which it refuses to run as."""

    def __init__(self, folder: Path) -> None:
        self._bin = _postgres_bin()
        self._folder = folder
        self._port = free_port()
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            self._as_user = ["runuser", "-u", "postgres", "--"]
        self._call("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")

    @property
    def url(self) -> str:
        """Of the maintenance database, without a driver."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            options += f" -c {setting}=off"
        self._call("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self, *, throw_away: bool = False) -> None:
        """`throw_away`: without writing down what is deleted next."""
        self._call("pg_ctl", "-w", "-m", "immediate" if throw_away else "fast", "stop")

    def _call(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._bin / program), "-D", str(self._folder / "data"), *arguments]
        _run(command)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """
    Raises:
        ServerMissing: PostgreSQL is not installed.
    """
    # Not under pytest's own folder, which user postgres could not enter.
    folder = Path(tempfile.mkdtemp(prefix="turnpike-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(throw_away=True)
    finally:
        shutil.rmtree(folder)


def new_postgres_database(url: str, template: str = "template1") -> str:
    """Create a database on the server of `url` from `template`, which must have no connections. The default template
    gives an empty database. Returns its URL."""
    name = f"test_{uuid.uuid4().hex[:12]}"

    async def create() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        await connection.close()

    asyncio.run(create())
    return f"{url.rpartition('/')[0]}/{name}"


def settle_sqlite(database: Path) -> None:
    """Bring all of an SQLite database into its one file, to be copied."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class RedisServer:
    """A Redis server without persistence that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise ServerMissing("Redis is not installed: apt-get install -y --no-install-recommends redis-server")
        self._program = program
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "dir": str(self._folder),
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen([self._program, *arguments], stdout=output, stderr=output)
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        self.stop()
        raise AssertionError(f"redis-server does not listen: {log.read_text(errors='replace')}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """
    Raises:
        ServerMissing: Redis is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="turnpike-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _postgres_bin() -> Path:
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not debian:
        raise ServerMissing("PostgreSQL is not installed: apt-get install -y --no-install-recommends postgresql")
    return debian[-1].parent


def _run(command: Sequence[str]) -> None:
    """The server outlives `pg_ctl start` and would keep a pipe open: output goes to a file."""
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd="/", check=False)
        output.seek(0)
        assert done.returncode == 0, f"{command}: {output.read().decode(errors='replace')}"
