"""CUDA graphs: decode steps recorded once and replayed without the host's launch cost.

A graph fixes addresses and sizes. So a step that replays one is padded with empty rows to the graph's size, and all
that differs from step to step is read from memory that stays in place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch

_Output = TypeVar("_Output")

_SMALL_SIZES = (1, 2, 4)
_SIZE_STEP = 8
_MAX_ROWS = 256


class GraphKey(NamedTuple):
    """Size of a graph: rows, padding included, and tokens of each."""

    rows: int
    tokens_each: int


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Which steps are replayed: `rows` in ascending order, each with `tokens_each`, up to `context_tokens` in total."""

    rows: tuple[int, ...]
    tokens_each: tuple[int, ...]
    context_tokens: int

    @property
    def keys(self) -> list[GraphKey]:
        """From the largest to the smallest: later captures fit into the memory of the first one."""
        keys = [GraphKey(rows, tokens) for rows in self.rows for tokens in self.tokens_each]
        return sorted(keys, key=lambda key: (key.rows * key.tokens_each, key), reverse=True)

    def key_for(self, rows: int, tokens_each: int, context_tokens: int) -> GraphKey | None:
        """The smallest graph that the step fits into; None if there is none."""
        if tokens_each not in self.tokens_each or context_tokens > self.context_tokens:
            return None
        padded = next((size for size in self.rows if size >= rows), None)
        return None if padded is None else GraphKey(padded, tokens_each)


NO_GRAPHS = GraphSizes((), (), 0)


def row_sizes(num_slots: int) -> tuple[int, ...]:
    """Sizes 1, 2, 4, 8, 16, 24 ... 256, as far as a step can have rows."""
    sizes = (*_SMALL_SIZES, *range(_SIZE_STEP, _MAX_ROWS + 1, _SIZE_STEP))
    needed = sum(size < num_slots for size in sizes) + 1
    return sizes[:needed]


class Capture(Protocol):
    """Records the launches of a computation; the returned callable replays them into the same results."""

    def __call__(self, compute: Callable[[], _Output]) -> Callable[[], _Output]: ...


class CudaCapture:
    """CUDA graphs that share one memory pool: the results of one may be overwritten by the replay of another.

    All are captured on one stream: libraries keep a workspace for each stream, of 32 MiB on Hopper.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, compute: Callable[[], _Output]) -> Callable[[], _Output]:
        # A first run outside the capture, for compilation of kernels and workspaces of libraries.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            compute()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = compute()

        def replay() -> _Output:
            graph.replay()
            return output

        return replay
