"""Pinned staging buffers for uploads to the device."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu.cores import usable_cores

_MIN_WORDS = 4096
_FEW_CORES = 4


class Fence(Protocol):
    """A point in the device's queue of work."""

    def record(self) -> None:
        """Place the fence after everything launched so far."""

    def synchronize(self) -> None:
        """Wait until the device has passed the fence, if it was recorded."""


class NoFence:
    """For a device on which launching is computing."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def fences_of(device: torch.device) -> Callable[[], Fence]:
    """The constructor of the device's fences. Waiting for one of a GPU takes a core for as long as it lasts, or, where
    cores are few, a few microseconds more."""
    if device.type != "cuda":
        return NoFence
    return partial(torch.cuda.Event, blocking=usable_cores() <= _FEW_CORES)


def on_device(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor [N] of a few values that a step needs once, uploaded without waiting for the device."""
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


class Staging:
    """Two host buffers used alternately, so that words in transfer are never overwritten.

    There is one device buffer: what was uploaded must be used by launches before the next upload.
    """

    def __init__(self, device: torch.device, new_fence: Callable[[], Fence]) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._hosts = [self._host(_MIN_WORDS) for _ in range(2)]
        self._fences = [new_fence() for _ in range(2)]
        self._words = torch.empty(_MIN_WORDS, dtype=torch.int32, device=device)
        self._turn = 0

    def upload(self, words: npt.NDArray[np.int32]) -> Tensor:
        """Words [N] as int32 [N] on the device."""
        count = len(words)
        turn = self._turn
        self._fences[turn].synchronize()
        # Allocations that may fail come first.
        if count > len(self._words):
            self._words = torch.empty(_room_for(count), dtype=torch.int32, device=self._device)
        if count > len(self._hosts[turn]):
            self._hosts[turn] = self._host(_room_for(count))
        host, device = self._hosts[turn][:count], self._words[:count]
        host.numpy()[:] = words
        device.copy_(host, non_blocking=True)
        self._fences[turn].record()
        self._turn = 1 - turn
        return device

    def _host(self, words: int) -> Tensor:
        return torch.empty(words, dtype=torch.int32, pin_memory=self._pinned)


def _room_for(words: int) -> int:
    """The next power of two, so that a buffer seldom grows."""
    return 1 << (words - 1).bit_length()
