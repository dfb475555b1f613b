"""Redis under simulation: a library's server that runs the real Lua scripts, with latency, outages, a full memory."""

import asyncio
import contextlib
from collections.abc import Coroutine
from random import Random
from typing import Any

from fakeredis import FakeAsyncRedis, FakeServer
from redis.exceptions import ConnectionError, OutOfMemoryError, RedisError

from gateway.admission.deadlines import CEILING_S

_WRITES = frozenset((b"EVALSHA", b"EVAL", b"SET", b"HSET", b"EVALSHA_RO"))


class RedisMachine:
    """One server that several gateways share. `down`: nothing answers. `full`: what writes is refused, PING answers.
    `late_s`: how much longer each call takes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.server = FakeServer(server_type="redis", version=(7,))
        self.down = False
        self.full = False
        self.lost_data = False
        self.late_s = 0.0
        self.calls = 0
        self._late: set[asyncio.Task[None]] = set()

    @property
    def accepts(self) -> bool:
        """Whether it takes writes, and answers before a gateway gives up waiting."""
        return not (self.down or self.full) and self.late_s < CEILING_S

    def client(self) -> "RedisClient":
        return RedisClient(self)

    def empty(self) -> None:
        """As after a restart without persistence: connections break with what lies in their buffers, data and scripts
        are gone."""
        for task in self._late:
            task.cancel()
        self.server = FakeServer(server_type="redis", version=(7,))
        self.lost_data = True

    def arrives_late(self, call: Coroutine[Any, Any, Any]) -> None:
        """A cancelled call. At times its command lies in the buffer of the closed connection, and is executed after
        later commands of other connections."""
        if self.random.random() < 0.5:
            call.close()
            return

        async def arrive() -> None:
            try:
                await asyncio.sleep(self.random.uniform(0.0, 0.2))
                if not self.down:
                    with contextlib.suppress(RedisError):
                        await call
            finally:
                call.close()

        task = asyncio.create_task(arrive(), name="a late command")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def travel(self, *, cut: bool = False) -> None:
        """One way between the program and the server."""
        if self.down or cut:
            # A dead host answers nothing for a while; a closed port refuses at once.
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.02, 1.0)))
            raise ConnectionError("the simulated Redis is down")
        await asyncio.sleep(self.late_s / 2 + self.random.uniform(2e-5, 3e-4))


class RedisClient:
    """The part of a client that the program's stores use. A call that fails or is cancelled may have taken effect.

    `cut`: its process was killed, and reaches nothing any more."""

    def __init__(self, machine: RedisMachine) -> None:
        self.cut = False
        self._machine = machine
        self._server: FakeServer | None = None
        self._inner: FakeAsyncRedis | None = None

    def register_script(self, source: str) -> "_Script":
        return _Script(self, source)

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        machine = self._machine
        machine.calls += 1
        try:
            await machine.travel(cut=self.cut)
        except asyncio.CancelledError:
            if not self.cut:
                machine.arrives_late(self._execute(command, options))
            raise
        answer = await self._execute(command, options)
        await machine.travel(cut=self.cut)
        return answer

    async def _execute(self, command: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._machine.full and not _reads(command):
            raise OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
        return await self._of_now().execute_command(*command, **options)

    async def ping(self) -> Any:
        return await self.execute_command("PING")

    async def eval(self, source: str, keys: int, *arguments: Any) -> Any:
        return await self.execute_command("EVAL", source, keys, *arguments)

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    def _of_now(self) -> FakeAsyncRedis:
        if self._inner is None or self._server is not self._machine.server:
            self._server = self._machine.server
            self._inner = FakeAsyncRedis(server=self._server)
        return self._inner

    def __getattr__(self, name: str) -> Any:
        """Other commands, in the library's own words."""

        async def call(*arguments: Any, **options: Any) -> Any:
            machine = self._machine
            await machine.travel(cut=self.cut)
            answer = await getattr(self._of_now(), name)(*arguments, **options)
            await machine.travel(cut=self.cut)
            return answer

        return call


_WITH_INFO = """
local server = redis
local redis = setmetatable({call = function(command, ...)
  if command == 'INFO' then return '\\nused_memory:0\\nmaxmemory:0\\n' end
  return server.call(command, ...)
end}, {__index = server})
"""
"""Adds the command that the library lacks: of a server whose memory has no bound."""


class _Script:
    """A registered script."""

    def __init__(self, client: RedisClient, source: str) -> None:
        self._client = client
        # Redis reads flags behind a first `#!lua`; to the library that is no Lua. None of ours allows writes when full.
        self._source = _WITH_INFO + (source.partition("\n")[2] if source.startswith("#!") else source)

    async def __call__(self, keys: Any = (), args: Any = (), client: Any = None) -> Any:
        return await (client or self._client).execute_command("EVAL", self._source, len(keys), *keys, *args)


def _reads(command: tuple[Any, ...]) -> bool:
    return str(command[0]).upper() in ("PING", "GET", "HGET", "INFO", "CONFIG GET", "CONFIG")
