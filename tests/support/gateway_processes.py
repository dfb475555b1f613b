"""A gateway of several processes with real stores, and the processes that it consists of."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gateway.config.pepper import load_pepper
from gateway.config.settings import load_settings
from gateway.tenancy import ScopeKind, open_database
from gateway.tenancy.schema import upgrade
from tests.support.program import TURNPIKE
from tests.support.servers import free_port
from tests.support.writers import LimitWriter, TenantWriter

START_SECONDS = 90.0
LIMIT = 7
PRICES = ("0.1", "0.05", "0.4")


@dataclass(frozen=True, slots=True)
class Stores:
    """URLs of the stores that gateway processes share."""

    database: str
    redis: str
    analytics: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "TURNPIKE_DATABASE_URL": self.database,
            "TURNPIKE_REDIS_URL": self.redis,
            "TURNPIKE_ANALYTICS_URL": self.analytics,
        }


@dataclass(slots=True)
class Group:
    """`turnpike serve` with several gateway processes. `key` is of the tenant `acme`, which has no limits; `limited` of
    `small`, which has `LIMIT` requests a minute."""

    data_dir: Path
    port: int
    environment: Mapping[str, str]
    arguments: tuple[str, ...]
    key: str = ""
    limited: str = ""
    program: tuple[str, ...] = (str(TURNPIKE),)
    """The command that `serve` follows."""
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.data_dir / "server.log").read_text()

    def start(self) -> None:
        command = [*self.program, "serve", "--port", str(self.port), "--data-dir", str(self.data_dir), *self.arguments]
        with (self.data_dir / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **self.environment}
            )

    def gateways(self) -> dict[int, int]:
        """Ids of the gateway processes, by index as of their start: the supervisor starts them in order."""
        found = [each for each in children(self.process.pid) if "gateway_process" in command_line(each)]
        return dict(enumerate(sorted(found)))

    def engine(self) -> int:
        (pid,) = [each for each in children(self.process.pid) if "engine.workers.process" in command_line(each)]
        return pid

    def metrics(self) -> dict[str, float]:
        """Values by series, as one scrape has them."""
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def total(self, name: str) -> float:
        """The sum of a metric over all label sets."""
        return sum(value for series, value in self.metrics().items() if series.partition("{")[0] == name)

    def until_complete(self, count: int, seconds: float = START_SECONDS) -> None:
        """Wait until all processes answer."""

        def is_complete() -> bool:
            assert self.process.poll() is None, self.log
            try:
                up = [value for name, value in self.metrics().items() if name.startswith("turnpike_gateway_process_up")]
                return httpx.get(f"{self.url}/readyz").status_code == 200 and up == [1.0] * (count if count > 1 else 0)
            except httpx.TransportError:
                return False

        wait(is_complete, seconds, lambda: self.log)


@contextmanager
def running_group(
    data_dir: Path,
    stores: Stores,
    *arguments: str,
    count: int,
    environment: Mapping[str, str] | None = None,
    program: tuple[str, ...] = (str(TURNPIKE),),
) -> Iterator[Group]:
    """A gateway with prices, a tenant and a key. It is killed at the end, if it has not ended."""
    data_dir.mkdir(parents=True, exist_ok=True)
    prices = {argument.partition("=")[0]: PRICES for argument in arguments if "=" in argument}
    settings = {
        "TURNPIKE_GATEWAY_PROCESSES": str(count),
        "TURNPIKE_PRICES": json.dumps(prices),
        **stores.environment,
        **(environment or {}),
    }
    group = Group(data_dir, free_port(), settings, arguments, program=program)
    group.key, group.limited = asyncio.run(_keys(data_dir, stores))
    group.start()
    try:
        group.until_complete(count)
        yield group
    finally:
        if group.process.poll() is None:
            group.process.kill()
            group.process.wait()


async def _keys(data_dir: Path, stores: Stores) -> tuple[str, str]:
    settings = load_settings(data_dir=data_dir, database_url=stores.database)
    url = settings.database_url.get_secret_value()
    await upgrade(url)
    database = open_database(url)
    try:
        store = TenantWriter(database, load_pepper(settings))
        await store.create_tenant("acme", "premium")
        await store.create_tenant("small", "premium")
        await LimitWriter(database).set_limits("small", ScopeKind.TENANT, "", {"requests_per_minute": LIMIT})
        keys = [await store.create_key(tenant) for tenant in ("acme", "small")]
    finally:
        await database.dispose()
    return keys[0].plaintext, keys[1].plaintext


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
        int(each)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if task.name != str(pid)
        for each in (task / "children").read_text().split()
    ]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait(condition, seconds: float, why=lambda: "") -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
