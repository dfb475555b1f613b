"""The copier's speed, as measured."""

_FIRST_BYTES_PER_S = 250e6
"""Assumed until the first copy."""
_MEMORY = 0.8
"""The weight of earlier copies when the next one is added."""
_COUNTED_BLOCKS = 8
"""A copy of this many blocks has its full weight: the time of a shorter one says less."""


class CopySpeed:
    """The time of one block in one direction: a moving average."""

    def __init__(self, block_bytes: int) -> None:
        self.block_ns = 1e9 * block_bytes / _FIRST_BYTES_PER_S
        self._is_measured = False

    def observe(self, blocks: int, elapsed_ns: int) -> None:
        """Learn from a copy."""
        if not blocks:
            return
        measured = elapsed_ns / blocks
        weight = 1.0 if not self._is_measured else (1 - _MEMORY) * min(1.0, blocks / _COUNTED_BLOCKS)
        self.block_ns += weight * (measured - self.block_ns)
        self._is_measured = True
