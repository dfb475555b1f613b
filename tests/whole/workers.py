"""Engines in processes of their own: the real supervisor, client, frames and server, over simulated processes."""

import asyncio
import select
import socket
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.runtime.loaded_model import LoadedModel
from engine.runtime.submission import Submission
from engine.workers import client_models, supervisor
from engine.workers.messages import Abort, Aborted, Deltas, FromWorker, Ready, Start, Submit, ToWorker
from engine.workers.worker_engine import WorkerEngine
from tests.whole import models, sockets
from tests.whole.clock import VirtualClock
from tests.whole.loop import VirtualLoop
from tests.whole.scenario import Config
from tests.whole.sockets import Socket
from tests.whole.threads import Namespace
from tests.whole.worker_process import SimulatedGrammars, WorkerProcess

ARMED_S = 0.004
"""A process is killed at once upon a message, or mostly within this."""

HowItStarts = Literal["", "dies", "fails"]


@dataclass(slots=True)
class Seen:
    """The part of a request that its client's process has received from workers.

    `cached_tokens`: of the first worker that has delivered tokens. `consumed`: tokens of the answer as the last report
    on its abort had it.
    """

    tokens: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    consumed: int = 0


class WorkerHost:
    """The workers of one gateway, one after another, with the ends that are planned for them."""

    def __init__(
        self,
        config: Config,
        clock: VirtualClock,
        loop: VirtualLoop,
        random: Random,
        load: Callable[[WorkerProcess], Engine],
    ) -> None:
        self.config = config
        self.current: WorkerProcess | None = None
        self.ended_s: list[float] = []
        """Times at which a worker that was ready had ended, as the client noticed."""
        self.start_failed_s: list[float] = []
        self.absent_s: list[tuple[float, float]] = []
        """Periods without a worker, as the client sees them."""
        self.seen: dict[str, Seen] = {}
        self.is_present = False
        self.wrong: list[str] = []
        """Messages that the client must not have sent."""
        self._aborted: set[str] = set()
        self.submits: Counter[str] = Counter()
        """By request id: how often the client has submitted it."""
        self._submitted_tokens: dict[str, int] = {}
        """By request id: the tokens that it was submitted with last."""
        self._armed: deque[str] = deque()
        self._kills: list[asyncio.TimerHandle] = []
        self._starts: deque[tuple[HowItStarts, float]] = deque()
        self._clock = clock
        self._loop = loop
        self._random = random
        self._load = load

    @property
    def is_armed(self) -> bool:
        return bool(self._armed)

    @property
    def is_ready(self) -> bool:
        return self.current is not None and self.current.core is not None

    def arm(self, upon: str) -> None:
        """Kill a worker when it has sent or handled such a message; empty: now."""
        if upon:
            self._armed.append(upon)
        elif self.current is not None:
            self.current.kill()

    def plan_start(self, how: HowItStarts, late_s: float) -> None:
        """Plan the course of the next start."""
        self._starts.append((how, late_s))

    def disarm(self) -> None:
        for kill in self._kills:
            kill.cancel()
        self._armed.clear()
        self._starts.clear()

    def next_start(self, process: WorkerProcess) -> tuple[HowItStarts, float]:
        """How the worker that starts now does it, and how long it loads."""
        self.current = process
        how, late_s = self._starts.popleft() if self._starts and self.ended_s else ("", 0.0)
        return how, late_s + self.config.worker_ms / 1000 * self._random.uniform(0.5, 1.5)

    def load(self, process: WorkerProcess) -> Engine:
        return self._load(process)

    def on_seen(self, process: WorkerProcess, names: Iterable[str]) -> None:
        """A worker has sent or handled a message of these names."""
        if self._armed and self._armed[0] in names:
            self._armed.popleft()
            if self._random.random() < 0.5:
                process.kill()
            else:
                within_s = self._random.choice((ARMED_S, ARMED_S, 1.0))
                self._kills.append(self._loop.call_later(within_s * self._random.random(), process.kill))

    def on_ended(self, process: WorkerProcess) -> None:
        if self.current is process:
            self.current = None

    def on_absent(self) -> None:
        self.is_present = False
        self.absent_s.append((self._clock.elapsed_s, float("inf")))

    def on_present(self) -> None:
        self.is_present = True
        if self.absent_s:
            self.absent_s[-1] = self.absent_s[-1][0], self._clock.elapsed_s

    def on_worker_ended(self) -> None:
        self.ended_s.append(self._clock.elapsed_s)
        self.on_absent()

    def on_start_failed(self) -> None:
        self.start_failed_s.append(self._clock.elapsed_s)

    def on_sending(self, message: ToWorker) -> None:
        """The client passes a message to the supervisor."""
        if isinstance(message, Abort):
            self._aborted.update(message.request_ids)
        elif isinstance(message, Submit):
            ids = [each for one in message.submissions for each in one.request_ids]
            self.submits.update(ids)
            for one in message.submissions:
                self._check_progress(one)
            again = self._aborted.intersection(ids)
            self.wrong += [f"aborted requests are submitted: {sorted(again)}"] if again else []
            self.wrong += [] if self.is_present else [f"requests are submitted to no worker: {ids}"]

    def _check_progress(self, submission: Submission) -> None:
        """A request gets a third worker only if the second has given it a token."""
        tokens = len(submission.token_ids)
        for request_id in submission.request_ids:
            if self.submits[request_id] > 2 and tokens <= self._submitted_tokens[request_id]:
                self.wrong.append(f"{request_id} is submitted again without a token since it was last")
            self._submitted_tokens[request_id] = tokens

    def on_received(self, message: FromWorker) -> None:
        """A message that the client has decoded."""
        match message:
            case Deltas():
                for delta in message.deltas:
                    seen = self.seen.setdefault(delta.request_id, Seen())
                    if delta.token_ids and seen.cached_tokens is None:
                        seen.cached_tokens = delta.cached_tokens
                    seen.tokens += delta.token_ids
            case Aborted():
                for request_id, usage in message.usages.items():
                    self.seen.setdefault(request_id, Seen()).consumed = usage.completion_tokens


class SeenEngine(WorkerEngine):
    """A client that says what it has received."""

    def __init__(self, models: Mapping[str, Path | str], config: EngineConfig, host: WorkerHost) -> None:
        self.host = host
        super().__init__(models, config)
        send = self.requests._send

        def counted(message: ToWorker) -> bool:
            host.on_sending(message)
            return send(message)

        self.requests._send = counted

    def on_ready(self, ready: Ready) -> None:
        self.host.on_present()
        super().on_ready(ready)

    def on_message(self, message: FromWorker) -> None:
        self.host.on_received(message)
        super().on_message(message)

    def on_ended(self) -> None:
        super().on_ended()
        self.host.on_worker_ended()

    def on_start_failed(self) -> None:
        super().on_start_failed()
        self.host.on_start_failed()


class Workers:
    """Processes and sockets of all gateways of a run."""

    def __init__(self, config: Config, clock: VirtualClock, loop: VirtualLoop, random: Random) -> None:
        self._config = config
        self._clock = clock
        self._loop = loop
        self._random = random
        self.hosts: list[WorkerHost] = []
        self._hosts: dict[Path, WorkerHost] = {}
        self._sockets: dict[int, Socket] = {}
        self.processes: list[WorkerProcess] = []

    def host(self, folder: Path, load: Callable[[WorkerProcess], Engine]) -> WorkerHost:
        """That of the gateway with this folder."""
        host = WorkerHost(self._config, self._clock, self._loop, self._random, load)
        self._hosts[folder] = host
        self.hosts.append(host)
        return host

    def with_grammars(self, loaded: Sequence[LoadedModel], process: WorkerProcess) -> list[LoadedModel]:
        """The models with compilers of grammars."""
        mean_s = 10 * self._config.worker_delay_us / 1e6
        return [
            replace(each, served=replace(each.served, grammars=SimulatedGrammars(process, self._random, mean_s)))  # type: ignore[arg-type]
            for each in loaded
        ]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Under every supervisor of the block."""
        with (
            patch.object(supervisor, "socket", Namespace(socket, {"socketpair": self._pair})),
            patch.object(supervisor, "subprocess", Namespace(subprocess, {"Popen": self._open})),
            patch.object(supervisor, "select", Namespace(select, {"poll": sockets.Poll})),
            patch.object(client_models, "open_checkpoint", _checkpoint),
        ):
            yield

    async def aclose(self) -> None:
        """All processes end, as their gateways have."""
        for process in self.processes:
            if process.task is not None:
                await asyncio.wait([process.task])

    def _pair(self) -> tuple[Socket, Socket]:
        here, there = sockets.pair(self._clock, self._random, self._config.worker_delay_us, self._config.worker_room)
        self._sockets[there.fileno()] = there
        return here, there

    def _open(self, arguments: list[str], *, pass_fds: list[int], **_: Any) -> WorkerProcess:
        connection = self._sockets.pop(pass_fds[0])
        connection.is_inherited = True
        process = WorkerProcess(connection, self._host_of, self._loop, self._random)
        self.processes.append(process)
        return process

    def _host_of(self, start: Start) -> WorkerHost:
        return self._hosts[next(iter(start.models.values())).parent]


def _checkpoint(path: Path, cache: Path | None) -> Any:
    return SimpleNamespace(text_processor=models.text)
