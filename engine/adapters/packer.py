"""Reads and packs adapters for the native library in a process of its own: it takes neither a core nor the GIL from a
step.

`python -m engine.adapters.packer` is that process. Its input: one pickled `PackRequest` after another. Its output: the
line `READY`, then for each request a line of JSON, the `PackedPlaces` or what is `refused`, and the packed bytes. It
ends with its input.
"""

import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import read_unchanged
from engine.adapters.source import AdapterSource
from engine.models.config import ModelConfig
from kernels.arrays import Bytes, aligned_bytes
from kernels.cpu.native.adapter_packing import AdapterPacking, ModelLayout, PackedPlaces

READY = b"ready\n"
_NICENESS = 19
"""Where SCHED_IDLE cannot be had."""


@dataclass(frozen=True, slots=True)
class PackRequest:
    """An adapter, its base model, and the layout to pack it for."""

    source: AdapterSource
    config: ModelConfig
    layout: ModelLayout


def read_answer(stream: IO[bytes]) -> tuple[Bytes, PackedPlaces]:
    """The packed adapter that the process answers with.

    Raises:
        UnsupportedAdapter: it was refused.
        EOFError: the process has ended.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the process that packs adapters has ended")
    answer = json.loads(line)
    if "refused" in answer:
        raise UnsupportedAdapter(answer["refused"])
    places = PackedPlaces(**answer | {"offsets": {int(number): at for number, at in answer["offsets"].items()}})
    memory = aligned_bytes(places.bytes)
    if stream.readinto(memory) != places.bytes:  # type: ignore[attr-defined]
        raise EOFError("the process that packs adapters has ended")
    return memory, places


def _answer(request: PackRequest) -> tuple[dict[str, Any], Bytes]:
    try:
        weights = read_unchanged(request.source, request.config)
        packing = AdapterPacking(weights, request.layout)
        memory = aligned_bytes(packing.bytes)
        return asdict(packing.pack(memory)), memory
    except (UnsupportedAdapter, ValueError, OSError) as error:
        return {"refused": str(error)}, aligned_bytes(0)
    except MemoryError:
        return {"refused": "reading it takes too much memory"}, aligned_bytes(0)


def _yield_to_all() -> None:
    """Run in the gaps between the steps of others. A core on which only such a process runs counts as idle: a thread
    that wakes up is placed there, and has it at once (sched(7), SCHED_IDLE)."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox forbids it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
    os.nice(_NICENESS)


def main() -> None:
    """The process that packs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the whole process group by a terminal
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(READY)
    sink.flush()
    _yield_to_all()
    with suppress(EOFError):
        while True:
            facts, memory = _answer(pickle.load(source))
            sink.write(json.dumps(facts).encode() + b"\n")
            sink.write(memory.data)
            sink.flush()


if __name__ == "__main__":
    main()
