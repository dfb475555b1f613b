"""Reads and packs adapters: in a process of its own where the packed form can be made without the base model's weights,
else in the calling thread."""

import logging
import math
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from engine.adapters.child_process import environment
from engine.adapters.folder import WEIGHTS, read_unchanged
from engine.adapters.packer import READY, PackRequest, read_answer
from engine.adapters.source import AdapterSource
from engine.errors import EngineError
from engine.models.config import ModelConfig
from kernels.adapters import AdapterWeights, PackedAdapter
from kernels.arrays import Bytes
from kernels.cpu.native.adapter_packing import ModelLayout, PackedPlaces
from kernels.cpu.native.adapters import NativeAdapter

logger = logging.getLogger(__name__)

_START_SECONDS = 10.0
"""Maximum time of the start: imports, about half a second on an idle machine."""
_LEAST_SECONDS = 2.0
_LEAST_BYTES_A_SECOND = 20_000_000
"""An adapter that takes longer than the first, and longer than its files do at this speed, is read by a thread."""
_PAUSE_SECONDS = 60.0
"""Time for which threads read after the process was too slow, or has ended."""
_PIPE_BYTES = 1 << 20


class ProcessUnavailable(EngineError):
    """The process that packs adapters does not start, has ended, or is too slow on a busy machine."""


class AdapterReader(Protocol):
    """Reads the adapters of one model."""

    def read(self, source: AdapterSource) -> PackedAdapter:
        """The packed adapter. Called by one thread, also during a step.

        Raises:
            UnsupportedAdapter: its files cannot be served, or have changed since the digest was computed.
            ValueError: the adapter does not fit the model.
            EngineError: the engine is closed.
        """
        ...


class AdapterPacker(Protocol):
    """Packs adapters in the format of a model's backend."""

    @property
    def adapter_layout(self) -> ModelLayout | None:
        """See `engine.models.host_model.HostModel`."""
        ...

    def pack_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """See `engine.models.host_model.HostModel`."""
        ...


def adapter_reader(packer: AdapterPacker, config: ModelConfig, process: "AdapterProcess") -> AdapterReader:
    """Reads in `process`, if that can pack for the backend."""
    layout = packer.adapter_layout
    return ThreadReader(packer, config) if layout is None else ProcessReader(process, packer, config, layout)


class ThreadReader:
    """Reads in the calling thread."""

    def __init__(self, packer: AdapterPacker, config: ModelConfig) -> None:
        self._packer = packer
        self._config = config

    def read(self, source: AdapterSource) -> PackedAdapter:
        """See `AdapterReader`."""
        return self._packer.pack_adapter(read_unchanged(source, self._config))


class ProcessReader:
    """Reads in the engine's process for adapters, and in the calling thread where that is not available."""

    def __init__(
        self, process: "AdapterProcess", packer: AdapterPacker, config: ModelConfig, layout: ModelLayout
    ) -> None:
        self._process = process
        self._here = ThreadReader(packer, config)
        self._config = config
        self._layout = layout

    def read(self, source: AdapterSource) -> PackedAdapter:
        """See `AdapterReader`."""
        try:
            return self._process.pack(PackRequest(source, self._config, self._layout))
        except ProcessUnavailable as error:
            logger.info("an adapter is read by a thread: %s", error)
            return self._here.read(source)


class AdapterProcess:
    """The process that reads and packs the adapters of an engine's models, one after another. It is started for the
    first one. Thread-safe."""

    def __init__(self, seconds: float = _LEAST_SECONDS, pause_seconds: float = _PAUSE_SECONDS) -> None:
        """`seconds`: the maximum time of an adapter without its size. `pause_seconds`: after a failure."""
        self._seconds = seconds
        self._pause_seconds = pause_seconds
        self._asking = threading.Lock()
        self._changing = threading.Lock()
        """Held to start and to kill the process; never while it is asked."""
        self._process: subprocess.Popen[bytes] | None = None
        self._paused_until_s = -math.inf
        self._closed = False

    def pack(self, request: PackRequest) -> NativeAdapter:
        """Read and pack one adapter.

        Raises:
            UnsupportedAdapter: its files cannot be served, or have changed.
            ProcessUnavailable: the process has ended or takes too long, or has in the last minute.
            EngineError: this is closed.
        """
        with self._asking:
            if time.monotonic() < self._paused_until_s:
                raise ProcessUnavailable("the process for adapters has failed a moment ago")
            process = self._running()
            size = _size_of(request.source.folder)
            try:
                with _killed_after(process, self._seconds + size / _LEAST_BYTES_A_SECOND):
                    memory, places = _ask(process, request)
            except (EOFError, OSError) as error:
                raise self._failed(process) from error
        return NativeAdapter(memory, places, len(request.layout.layers))

    def close(self) -> None:
        """Kill the process; a `pack` in progress fails. Idempotent, callable from any thread."""
        with self._changing:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        with self._asking:
            if self._process is not None:
                self._end(self._process)

    def _running(self) -> subprocess.Popen[bytes]:
        with self._changing:
            if self._closed:
                raise EngineError("the engine is closed")
            if self._process is not None:
                return self._process
            try:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", "engine.adapters.packer"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment(),
                    pipesize=_PIPE_BYTES,
                )
            except OSError as error:
                self._paused_until_s = time.monotonic() + self._pause_seconds
                raise ProcessUnavailable(f"the process for adapters does not start: {error}") from error
        assert process.stdout is not None
        with _killed_after(process, _START_SECONDS):
            started = process.stdout.readline() == READY
        if not started:
            raise self._failed(process)
        return process

    def _failed(self, process: subprocess.Popen[bytes]) -> EngineError:
        self._end(process)
        if self._closed:
            return EngineError("the engine is closed")
        self._paused_until_s = time.monotonic() + self._pause_seconds
        return ProcessUnavailable("the process for adapters has ended, or takes too long")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._changing:
            self._process = None
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unwritten data cannot be flushed
                pipe.close()


def _size_of(folder: Path) -> int:
    """Bytes of an adapter's weights; 0 if they are not there, which reading them says."""
    try:
        return (folder / WEIGHTS).stat().st_size
    except OSError:
        return 0


@contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """Kill the process if the block takes longer, which ends its reads and writes of the pipes."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _ask(process: subprocess.Popen[bytes], request: PackRequest) -> tuple[Bytes, PackedPlaces]:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(request, process.stdin)
    process.stdin.flush()
    return read_answer(process.stdout)
