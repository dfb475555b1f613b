"""Reads and packs adapters: in a process of its own where the packed form can be made without the base model's weights,
else in the calling thread."""

import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Protocol

from engine.adapters.child_process import environment
from engine.adapters.folder import read_unchanged
from engine.adapters.packer import PackRequest, read_answer
from engine.adapters.source import AdapterSource
from engine.errors import EngineError
from engine.models.config import ModelConfig
from kernels.adapters import AdapterWeights, PackedAdapter
from kernels.arrays import Bytes
from kernels.cpu.native.adapter_packing import ModelLayout, PackedPlaces
from kernels.cpu.native.adapters import NativeAdapter

_READ_SECONDS = 120.0
"""Maximum time of one adapter, after which the process is killed."""
_PIPE_BYTES = 1 << 20


class AdapterReader(Protocol):
    """Reads the adapters of one model."""

    def read(self, source: AdapterSource) -> PackedAdapter:
        """The packed adapter. Called by one thread, also during a step.

        Raises:
            UnsupportedAdapter: its files cannot be served, or have changed since the digest was computed.
            ValueError: the adapter does not fit the model.
            EngineError: it could not be read in time, or the engine is closed.
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
    return ThreadReader(packer, config) if layout is None else ProcessReader(process, config, layout)


class ThreadReader:
    """Reads in the calling thread."""

    def __init__(self, packer: AdapterPacker, config: ModelConfig) -> None:
        self._packer = packer
        self._config = config

    def read(self, source: AdapterSource) -> PackedAdapter:
        """See `AdapterReader`."""
        return self._packer.pack_adapter(read_unchanged(source, self._config))


class ProcessReader:
    """Reads in the engine's process for adapters."""

    def __init__(self, process: "AdapterProcess", config: ModelConfig, layout: ModelLayout) -> None:
        self._process = process
        self._config = config
        self._layout = layout

    def read(self, source: AdapterSource) -> NativeAdapter:
        """See `AdapterReader`."""
        return self._process.pack(PackRequest(source, self._config, self._layout))


class AdapterProcess:
    """The process that reads and packs the adapters of an engine's models, one after another. It is started for the
    first one, and again if it has ended. Thread-safe."""

    def __init__(self, seconds: float = _READ_SECONDS) -> None:
        """`seconds`: the maximum time of one adapter."""
        self._seconds = seconds
        self._asking = threading.Lock()
        self._changing = threading.Lock()
        """Held to start and to kill the process; never while it is asked."""
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def pack(self, request: PackRequest) -> NativeAdapter:
        """Read and pack one adapter.

        Raises:
            UnsupportedAdapter: its files cannot be served, or have changed.
            EngineError: the process has ended or took too long, or this is closed.
        """
        with self._asking:
            process = self._running()
            timer = threading.Timer(self._seconds, process.kill)  # unblocks the write or read below
            timer.daemon = True
            timer.start()
            try:
                memory, places = _ask(process, request)
            except (EOFError, OSError) as error:
                self._end(process)
                raise EngineError("the process that packs adapters has ended, or took too long") from error
            finally:
                timer.cancel()
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
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "engine.adapters.packer"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment(),
                    pipesize=_PIPE_BYTES,
                )
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._changing:
            self._process = None
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unwritten data cannot be flushed
                pipe.close()


def _ask(process: subprocess.Popen[bytes], request: PackRequest) -> tuple[Bytes, PackedPlaces]:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(request, process.stdin)
    process.stdin.flush()
    return read_answer(process.stdout)
