"""Uploads weights: in pieces through two pinned buffers, one of which is filled while the other is in transfer.

Copied from memory that is not pinned, they would pass through a buffer of the driver's, one piece after another; and
parts of one product, concatenated on the host, would be copied once more.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PIECE_BYTES = 32 << 20


class WeightUploads:
    """Uploads to one device. On a CPU, the same without a wait."""

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        self.device = device
        self._piece_bytes = piece_bytes
        self._on_gpu = device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._next = 0

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The rows of tensors [N, ...] on the host, one part after another, on the device. All have one
        dtype and rows of one shape. They may be freed once this has returned."""
        rows = sum(len(part) for part in parts)
        joined = parts[0].new_empty((rows, *parts[0].shape[1:]), device=self.device)
        target = _bytes_of(joined)
        at = 0
        for part in parts:
            for piece in _bytes_of(part.contiguous()).split(self._piece_bytes):
                self._send(piece, target[at : at + len(piece)])
                at += len(piece)
        return joined

    def _send(self, piece: Tensor, target: Tensor) -> None:
        if not self._buffers:
            self._buffers = [
                torch.empty(self._piece_bytes, dtype=torch.uint8, pin_memory=self._on_gpu) for _ in range(2)
            ]
        buffer, sent = self._buffers[self._next][: len(piece)], self._sent[self._next]
        if sent is not None:
            sent.synchronize()
        buffer.copy_(piece)
        target.copy_(buffer, non_blocking=True)
        if self._on_gpu:
            self._sent[self._next] = event = torch.cuda.Event()
            event.record()
        self._next = 1 - self._next


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, uint8 [n], in its memory."""
    return tensor.view(-1).view(torch.uint8)
