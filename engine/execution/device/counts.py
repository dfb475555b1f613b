"""Counts on a GPU that other threads read while steps run."""

import torch
from torch import Tensor


class DeviceCounts:
    """Reads counts int64 [N], which stay at one place on the device.

    On a stream of its own: a reader does not wait for the steps in flight, and sees what their layers have added so
    far. A device that is lost gives the counts that were read last.
    """

    def __init__(self, counts: Tensor) -> None:
        self._counts = counts
        self._stream: torch.cuda.Stream | None = None
        if counts.is_cuda and len(counts):
            self._stream = torch.cuda.Stream(counts.device)  # type: ignore[no-untyped-call]
        self._last = (0,) * len(counts)

    def read(self) -> tuple[int, ...]:
        """The counts now. Callable from any thread."""
        if self._stream is None:
            return tuple(self._counts.tolist())
        try:
            with torch.cuda.stream(self._stream):
                self._last = tuple(self._counts.tolist())
        except torch.AcceleratorError:
            pass
        return self._last
