"""A rank as a child process: `python -m engine.execution.parallel.rank FD SETTINGS`.

FD is its end of a socket pair, by which rank 0 calls it. SETTINGS is a JSON object: the rank's place, and how it
computes. It ends with the connection, also in the middle of a step: it never outlives rank 0.
"""

import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.parallel.adapter_words import adapter_of
from engine.execution.parallel.channel import Call, Channel, ChannelEnded, Frame
from engine.execution.parallel.collectives import GlooGroup, RankCollective, open_store
from engine.execution.parallel.rank_model import PartToLoad, RankModel
from engine.execution.parallel.rank_processes import rank_groups
from engine.execution.parallel.shards import ParallelSizes, Place
from engine.execution.parallel.step_words import draws_of, held_draws_of, step_of
from engine.models.kv_groups import KVGroups
from kernels.arrays import Array
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.exchange import array_of

_NICENESS = 1
"""As of the engine thread of rank 0."""


def main() -> None:
    """The process."""
    # Sent to all processes of a terminal or of a service: rank 0 ends this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    channel, settings = Channel(socket.socket(fileno=int(sys.argv[1]))), json.loads(sys.argv[2])
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, frames), daemon=True).start()
    try:
        rank = Rank(settings, channel)
        while True:
            rank.carry_out(frames.get())
    except Exception as error:
        logging.debug("the rank ends", exc_info=True)
        with suppress(ChannelEnded):  # rank 0 has gone
            channel.send(Frame(Call.FAILED, data=f"{type(error).__name__}: {error}".encode()).encoded())
        os._exit(1)


def _receive(channel: Channel, frames: "queue.SimpleQueue[Frame]") -> None:
    try:
        while True:
            frame = channel.receive()
            if frame.call is Call.PING:
                channel.send(Frame(Call.PONG).encoded())
            else:
                frames.put(frame)
    except ChannelEnded:
        os._exit(0)


class Rank:
    """The models of one rank, and its connections to the others."""

    def __init__(self, settings: Mapping[str, Any], channel: Channel) -> None:
        self._place = Place(ParallelSizes(settings["tensor"], settings["stages"]), settings["rank"])
        self._channel = channel
        self._models: dict[int, RankModel] = {}
        dtype, threads = getattr(torch, settings["dtype"]), settings["threads"]
        torch.set_num_threads(threads)
        self._ops = CpuOps(CpuProfile(dtype, threads, settings["products"], settings["min_rows"], {}))
        self._timeout_s = settings["timeout_s"]
        self._store = open_store(settings["port"], is_master=False, timeout_s=self._timeout_s)
        self._world: GlooGroup
        self._stage: GlooGroup | None = None
        channel.send(Frame(Call.READY).encoded())

    def carry_out(self, frame: Frame) -> None:
        """Carry out one call of rank 0."""
        if frame.call is Call.JOIN:
            self._world, self._stage = rank_groups(self._store, self._place, self._timeout_s)
            return
        if frame.call is Call.LOAD:
            self._models[frame.model] = self._loaded(json.loads(frame.data))
            self._channel.send(Frame(Call.READY).encoded())
            return
        model, words = self._models[frame.model], frame.words
        match frame.call:
            case Call.ALLOCATE_KV:
                model.allocate_kv(int(words[0]))
            case Call.ALLOCATE_STATES:
                model.allocate_states(int(words[0]))
            case Call.ALLOCATE_ADAPTERS:
                model.allocate_adapters(int(words[0]))
            case Call.PUT_ADAPTER:
                model.put_adapter(int(words[0]), adapter_of(words[1:], frame.data))
            case Call.CLEAR_BLOCKS:
                model.clear_blocks(words)
            case Call.COPY_BLOCKS:
                model.copy_blocks(*words.reshape(2, -1))
            case Call.EMBED:
                model.embed(words)
            case Call.FORWARD:
                model.begin_forward(*step_of(words))
            case Call.SETTLE_DRAFTS:
                model.settle_drafts(words)
            case Call.LOGITS:
                model.logits(self._empty(*words.tolist()))
            case Call.DRAW:
                shape, columns = draws_of(words, frame.data, model.vocab_size)
                model.draw(self._empty(*shape), columns)
            case Call.LOGITS_HELD:
                model.logits_held(words)
            case Call.DRAW_HELD:
                model.draw_held(*held_draws_of(words, frame.data, model.vocab_size))
            case _:
                raise AssertionError(f"{frame.call!r} is no call of rank 0")

    def _empty(self, rows: int, size: int) -> Array:
        """Memory for hidden states."""
        return array_of(torch.empty((rows, size), dtype=self._ops.dtype))

    def _loaded(self, description: Mapping[str, Any]) -> RankModel:
        """The part of a model that rank 0 describes: `path`, `weight_cache`, `max_positions`, and the groups of KV of
        all layers, `windows` and `kv_places`."""
        cache = description["weight_cache"]
        checkpoint = open_checkpoint(Path(description["path"]), None if cache is None else Path(cache))
        kv_places = tuple((group, number) for group, number in description["kv_places"])
        groups = KVGroups(tuple(description["windows"]), description["kv_layers"], kv_places)
        part = PartToLoad(checkpoint, self._place, groups, description["max_positions"])
        collective = RankCollective(self._place, self._world, self._stage, checkpoint.config.vocab_size)
        return RankModel.load(part, self._ops, collective)


if __name__ == "__main__":
    main()
