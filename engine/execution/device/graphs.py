"""CUDA graphs: decode steps recorded once and replayed without the host's launch cost.

A graph fixes addresses and sizes. So a step that replays one is padded with empty rows to the graph's size, in rows and
in tokens, and all that differs from step to step is read from memory that stays in place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch

from engine.config import BLOCK_TOKENS

_Output = TypeVar("_Output")

_SMALL_SIZES = (1, 2, 4)
_SIZE_STEP = 8
_MAX_ROWS = 256
DRAFTED_ROWS = 32
"""Drafts pay while the device waits for weights: in small steps."""
_DRAFTED_TOKENS = (3, 5, 9)


SHARED_CONTEXTS = 4
"""Contexts of replayed steps may add up to this multiple of the KV memory: rows that share a prefix count it each."""


class GraphKey(NamedTuple):
    """A graph: its rows, padding included, the most tokens of each, and whether rows may have adapters."""

    rows: int
    tokens_each: int
    adapted: bool = False

    @property
    def tokens(self) -> int:
        """All tokens of a step that replays the graph."""
        return self.rows * self.tokens_each

    @property
    def lines(self) -> int:
        """Encoded rows. Where rows may have fewer tokens than others, as many rows of padding follow, which take what
        they leave: none has more tokens than a row may have."""
        return self.rows if self.tokens_each == 1 else 2 * self.rows


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Which steps are replayed: `rows` in ascending order with one token each, of at most `context_tokens` of context;
    with drafts, `drafted_rows` with `drafted_tokens` each, as far as these make up `max_tokens` in all. `adapted`:
    steps with adapters, too, by graphs of their own."""

    rows: tuple[int, ...]
    context_tokens: int
    drafted_rows: tuple[int, ...] = ()
    drafted_tokens: tuple[int, ...] = ()
    max_tokens: int = 0
    adapted: bool = False

    @property
    def keys(self) -> list[GraphKey]:
        """From the largest to the smallest: later captures fit into the memory of the first one."""
        keys = [GraphKey(rows, 1) for rows in self.rows]
        drafted = [GraphKey(rows, tokens) for rows in self.drafted_rows for tokens in self.drafted_tokens]
        keys += [key for key in drafted if key.tokens <= self.max_tokens]
        if self.adapted:
            keys += [key._replace(adapted=True) for key in keys]
        return sorted(keys, key=lambda key: (key.tokens, key), reverse=True)

    def key_for(self, rows: int, most_tokens: int, context_tokens: int, *, adapted: bool = False) -> GraphKey | None:
        """The smallest graph for a step whose rows have at most `most_tokens` each; None if there is none. `adapted`:
        whether a row has an adapter."""
        if adapted and not self.adapted:
            return None
        sizes, widths = (self.rows, (1,)) if most_tokens == 1 else (self.drafted_rows, self.drafted_tokens)
        padded = next((size for size in sizes if size >= rows), None)
        tokens_each = next((width for width in widths if width >= most_tokens), None)
        if padded is None or tokens_each is None or (most_tokens > 1 and padded * tokens_each > self.max_tokens):
            return None
        key = GraphKey(padded, tokens_each, adapted)
        return key if context_tokens <= self.context_of(key) else None

    def context_of(self, key: GraphKey) -> int:
        """Bound on the context of a step. Attention keeps partial results of each token of a row, so that all graphs
        take the same memory for them."""
        return self.context_tokens // key.tokens_each


NO_GRAPHS = GraphSizes((), 0)
SMALLEST_GRAPH = GraphSizes((1,), BLOCK_TOKENS)


def row_sizes(num_slots: int) -> tuple[int, ...]:
    """Sizes 1, 2, 4, 8, 16, 24 ... 256, as far as a step can have rows."""
    sizes = (*_SMALL_SIZES, *range(_SIZE_STEP, _MAX_ROWS + 1, _SIZE_STEP))
    needed = sum(size < num_slots for size in sizes) + 1
    return sizes[:needed]


def most_lines(num_slots: int) -> int:
    """Encoded rows of the largest graph with as many slots."""
    rows = row_sizes(num_slots)[-1]
    return max(rows, GraphKey(min(rows, DRAFTED_ROWS), _DRAFTED_TOKENS[0]).lines)


def graph_sizes(num_slots: int, context_tokens: int, *, drafts: bool, adapted: bool = False) -> GraphSizes:
    """The sizes that a runner captures; with `drafts`, also those of steps with up to eight drafts a row, and if
    `adapted`, those of steps with adapters."""
    rows = row_sizes(num_slots)
    if not drafts:
        return GraphSizes(rows, context_tokens, adapted=adapted)
    few = tuple(size for size in rows if size <= DRAFTED_ROWS and size.bit_count() == 1)
    # No more tokens, and so no more memory for logits, than the largest graph without drafts or few.
    return GraphSizes(rows, context_tokens, few, _DRAFTED_TOKENS, max(rows[-1], DRAFTED_ROWS), adapted)


def draft_model_sizes(num_slots: int, context_tokens: int, max_positions: int) -> GraphSizes:
    """The sizes of a draft model's steps: of one token a row, or two where all drafts of the last step were accepted.
    Contexts add up to at most `context_tokens`, and are of at most `max_positions` each."""
    needed = row_sizes(num_slots)
    rows = tuple(size for size in needed if size <= DRAFTED_ROWS and size.bit_count() == 1)
    return GraphSizes(rows, min(context_tokens, rows[-1] * max_positions), rows, (2,), 2 * rows[-1])


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
