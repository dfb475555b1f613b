"""Loads adapters in the background: reads and packs their files during steps, and fills slots between them."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.packed_cache import PackedCache
from engine.errors import EngineError
from engine.runtime.adapter_reading import AdapterPacker, AdapterReader
from engine.runtime.thread import lower_priority
from engine.scheduling.adapter_queue import AdapterLoad
from engine.scheduling.plan import Executor
from kernels.adapters import PackedAdapter

logger = logging.getLogger(__name__)

_COPY_SECONDS = 10.0
"""Maximum time of an adapter's copy to a device."""
_POLL_SECONDS = 0.001


@runtime_checkable
class AdapterMemory(AdapterPacker, Protocol):
    """Memory for the adapters of one model, in slots."""

    def put_adapter(self, slot: int, packed: Any | None) -> None:
        """Begin to fill a slot, or empty it: called between two launches. Steps launched before read what was there."""
        ...

    def is_resident(self, slot: int) -> bool:
        """Whether the slot holds what was put last. Called by any thread; does not wait."""
        ...


def adapter_memory(runner: Executor) -> AdapterMemory:
    """The memory of a runner that has some."""
    assert isinstance(runner, AdapterMemory), "the runner has no memory for adapters"
    return runner


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """A load whose files have been read. `packed`: None if they could not be."""

    load: AdapterLoad
    packed: PackedAdapter | None


@dataclass(frozen=True, slots=True)
class CopiedAdapter:
    """A load whose slot is filled, or could not be."""

    load: AdapterLoad
    succeeded: bool


LoadProgress = ReadAdapter | CopiedAdapter


class AdapterLoader:
    """Loads the adapters of one model, one after another. `load_seconds_total`: time spent on its thread."""

    def __init__(
        self,
        model: str,
        memory: AdapterMemory,
        reader: AdapterReader,
        cache_bytes: int,
        post: Callable[[str, LoadProgress], None],
    ) -> None:
        """`cache_bytes`: capacity for packed adapters without a slot. `post`: delivers progress to the engine thread,
        with the model's name."""
        self.load_seconds_total = 0.0
        self._cache = PackedCache(cache_bytes)
        self._model = model
        self._memory = memory
        self._reader = reader
        self._closed = False
        self._post = post
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turnpike-adapters", initializer=lower_priority)

    def begin(self, load: AdapterLoad) -> None:
        """Read and pack an adapter, unless it is still packed; a `ReadAdapter` is posted."""
        packed = self._cache.get(load.source.digest)
        if packed is None:
            self._thread.submit(self._read, load)
        else:
            self._deliver(ReadAdapter(load, packed))

    def put(self, read: ReadAdapter) -> bool:
        """Fill the slot; on the engine thread. False: a `CopiedAdapter` is posted when it is filled."""
        slot = read.load.slot
        self._memory.put_adapter(slot, read.packed)
        if self._memory.is_resident(slot):
            return True
        self._thread.submit(self._await_copy, read.load)
        return False

    def close(self) -> None:
        """Begin no further load. Does not wait for the one in progress."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, load: AdapterLoad) -> None:
        started_s = time.monotonic()
        packed = None
        try:
            packed = self._reader.read(load.source)
            self._cache.put(load.source.digest, packed)
        except (UnsupportedAdapter, EngineError, ValueError, OSError, MemoryError) as error:
            if not self._closed:
                logger.warning("adapter %.12s of %s cannot be loaded: %s", load.source.digest, self._model, error)
        except Exception:
            logger.exception("adapter %.12s of %s cannot be loaded", load.source.digest, self._model)
        self.load_seconds_total += time.monotonic() - started_s
        self._deliver(ReadAdapter(load, packed))

    def _await_copy(self, load: AdapterLoad) -> None:
        until_s = time.monotonic() + _COPY_SECONDS
        while not (resident := self._memory.is_resident(load.slot)) and time.monotonic() < until_s:
            time.sleep(_POLL_SECONDS)
        self._deliver(CopiedAdapter(load, resident))

    def _deliver(self, progress: LoadProgress) -> None:
        with suppress(EngineError):  # the engine is closed
            self._post(self._model, progress)
