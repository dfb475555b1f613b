"""The processes of the ranks after the first, which is this process: their start, their calls, and their end.

When one of them ends, whatever the reason, all others are ended at once: without it no step can be computed, and what
waits for it in a collective fails as its connections close.
"""

import json
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import Store

from engine.adapters.child_process import environment
from engine.errors import RankLost
from engine.execution.parallel.channel import Call, Channel, ChannelEnded, Frame
from engine.execution.parallel.collectives import GlooGroup, RankCollective, open_store
from engine.execution.parallel.shards import ParallelSizes, Place, places

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Maximum time of the start of a rank's process: it imports torch, on a machine that may be busy."""
_EXIT_SECONDS = 5.0
_CAUSE_SECONDS = 0.3
"""Time by which the end of a process precedes those of others that it makes fail."""
_BLAME_SECONDS = 2.0
"""Time in which the end of a process becomes known after a collective with it has failed."""


@dataclass(frozen=True, slots=True)
class _Rank:
    place: Place
    process: subprocess.Popen[bytes]
    channel: Channel

    def end_of(self) -> str:
        """How the process ended, for operators."""
        try:
            code = self.process.wait(_BLAME_SECONDS)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with code {code}"


class RankProcesses:
    """The ranks of one engine. Calls are made by one thread; a thread for each process waits for its answers and its
    end."""

    def __init__(self, sizes: ParallelSizes, backend: Mapping[str, str | int | float], timeout_s: float) -> None:
        """Start the processes. `backend`: as described by the op table of rank 0, whose choices all ranks have.
        `timeout_s`: of a collective.

        Raises:
            RankLost: a process ended, or did not start in time.
        """
        self.sizes = sizes
        self.place = Place(sizes, 0)
        self.on_lost: Callable[[RankLost], None] = lambda _: None
        self._timeout_s = timeout_s
        self._lost: RankLost | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[Place | None] = queue.SimpleQueue()
        self._models = 0
        self._responding: set[Place] = set()
        self._store = open_store(0, is_master=True, timeout_s=timeout_s)
        settings: dict[str, Any] = {
            "tensor": sizes.tensor,
            "stages": sizes.stages,
            "port": self._store.port,
            "timeout_s": timeout_s,
        }
        settings |= {key: backend[key] for key in ("dtype", "threads", "products", "min_rows")}
        self._ranks = [self._start(place, settings) for place in places(sizes)[1:]]
        for rank in self._ranks:
            name = f"turnpike-rank-{rank.place.rank}"
            threading.Thread(target=self._listen, args=(rank,), name=name, daemon=True).start()
        try:
            self.await_ready()  # they have imported what they need: joining takes milliseconds
            self.send(Frame(Call.JOIN))
            self._world, self._stage = self._groups()
        except BaseException:
            self.close()
            raise
        logger.info("%d ranks compute: tensor_parallel %d, %d stages", sizes.ranks, sizes.tensor, sizes.stages)

    def _groups(self) -> tuple[GlooGroup, GlooGroup | None]:
        try:
            return rank_groups(self._store, self.place, self._timeout_s)
        except RuntimeError as error:
            raise self.failure(error) from error

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes of the ranks from 1 on."""
        return tuple(rank.process.pid for rank in self._ranks)

    def collective(self, vocab_size: int) -> RankCollective:
        """The collectives of a model on rank 0."""
        return RankCollective(self.place, self._world, self._stage, vocab_size)

    def load(self, description: Mapping[str, object]) -> int:
        """Begin to load a model on all ranks: see `rank.main`. Returns its number; `await_ready` follows."""
        number, self._models = self._models, self._models + 1
        self.send(Frame(Call.LOAD, number, data=json.dumps(description).encode()))
        return number

    def await_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until all ranks have carried out what they answer.

        Raises:
            RankLost: one ended, or did not answer in time.
        """
        waiting: set[Place | None] = {rank.place for rank in self._ranks}
        until_s = time.monotonic() + seconds
        while waiting:
            try:
                place = self._answers.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                names = ", ".join(rank.place.name for rank in self._ranks if rank.place in waiting)
                self._lose(RankLost(f"{names} did not start or load its model in {seconds:g} s"))
                place = None
            if self._lost is not None:
                raise self._lost
            waiting.discard(place)

    def send(self, frame: Frame) -> None:
        """Begin a call on all ranks from 1 on.

        Raises:
            RankLost: one has ended, or reads nothing.
        """
        encoded = frame.encoded()
        for rank in self._ranks:
            self.send_to(rank.place, encoded)

    def send_to(self, place: Place, encoded: bytes) -> None:
        """Begin a call on one rank.

        Raises:
            RankLost: it has ended, or reads nothing.
        """
        if self._lost is not None:
            raise self._lost
        rank = self._ranks[place.rank - 1]
        try:
            rank.channel.send(encoded)
        except ChannelEnded as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> RankLost:
        """Why a call failed on this rank: another one has ended, or does not respond, as far as is known after
        `_BLAME_SECONDS`. All ranks are ended."""
        self._responding.clear()
        for rank in self._ranks:
            rank.channel.try_send(Frame(Call.PING).encoded())
        until_s = time.monotonic() + _BLAME_SECONDS
        while self._lost is None and time.monotonic() < until_s:
            time.sleep(0.01)
        silent = [
            f"{rank.place.name}, process {rank.process.pid}"
            for rank in self._ranks
            if rank.place not in self._responding
        ]
        blamed = f"{'; '.join(silent)}: no response" if silent else "no rank has ended, and all respond"
        return self._lose(RankLost(f"a call failed on rank 0 (timeout {self._timeout_s:g} s). {blamed}: {error}"))

    def close(self) -> None:
        """End the processes; returns when they have ended. Idempotent."""
        with self._lock:
            self._closed = True
        for rank in self._ranks:
            rank.channel.close()
        until_s = time.monotonic() + _EXIT_SECONDS
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()

    def _start(self, place: Place, settings: Mapping[str, object]) -> _Rank:
        mine, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "engine.execution.parallel.rank", str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, json.dumps({**settings, "rank": place.rank})],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment(),
            )
        mine.settimeout(self._timeout_s)
        return _Rank(place, process, Channel(mine))

    def _listen(self, rank: _Rank) -> None:
        """Receive a rank's answers, until its process ends."""
        reason = ""
        try:
            while True:
                frame = rank.channel.receive()
                if frame.call is Call.READY:
                    self._answers.put(rank.place)
                elif frame.call is Call.PONG:
                    self._responding.add(rank.place)
                else:
                    reason = f": {frame.data.decode()}"
        except ChannelEnded:
            if reason:  # perhaps it failed because of another one, whose end is known by then
                time.sleep(_CAUSE_SECONDS)
        if not self._closed:
            self._lose(RankLost(f"{rank.place.name}, process {rank.process.pid}, {rank.end_of()}{reason}"))

    def _lose(self, error: RankLost) -> RankLost:
        """End all ranks. Returns the error that did: the first one."""
        with self._lock:
            if self._lost is not None or self._closed:
                return self._lost or error
            self._lost = error
        logger.critical("%s", error)
        for rank in self._ranks:
            rank.process.kill()
        self._answers.put(None)
        self.on_lost(error)
        return error


def rank_groups(store: Store, place: Place, timeout_s: float) -> tuple[GlooGroup, GlooGroup | None]:
    """The group of all ranks, and that of a rank's stage; None where it is the only one. Called by each rank."""
    sizes = place.sizes
    world = GlooGroup(store, "all", place.rank, sizes.ranks, timeout_s)
    if sizes.tensor == 1:
        return world, None
    return world, GlooGroup(store, f"stage {place.stage}", place.part, sizes.tensor, timeout_s)
