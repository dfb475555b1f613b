"""A checkpoint as the model loader sees it, whatever file format it came in.

Tensors carry Hugging Face's names and layouts (`model.layers.0.self_attn.q_proj.weight` of shape
[out_features, in_features], half-split rope), so that the loader knows one convention.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from engine.models.config import ModelConfig
from engine.models.gguf_file import GGUFCheckpoint
from engine.models.hf_folder import HFCheckpoint
from engine.models.weight_cache import CachedCheckpoint
from engine.text.processor import TextProcessor
from kernels.arrays import Array, Dtype
from kernels.weights import StoredWeight


class WeightSource(Protocol):
    """A model's weights, wherever they come from: all that loading it takes."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as stored, in bytes: the total of a progress bar over `tensors`."""
        ...

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
        """Every weight once, in no particular order, in `dtype`. May be memory-mapped: do not write to it."""
        ...


@runtime_checkable
class BlockSource(Protocol):
    """A source that keeps matrices in blocks of few bits, and gives them as they are to who computes with them."""

    @property
    def block_formats(self) -> Mapping[str, str]:
        """The format, as `StoredWeight` names it, of each matrix in blocks."""
        ...

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        """These of the matrices in blocks. Memory-mapped, and soon read again: pack each before taking the next."""
        ...

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """As a `WeightSource` does, without some of them."""
        ...


class Checkpoint(WeightSource, Protocol):
    """An opened, validated checkpoint. Opening reads headers only; `tensors` reads the weights."""

    @property
    def path(self) -> Path: ...

    def text_processor(self) -> TextProcessor: ...


def open_checkpoint(path: Path, weight_cache: Path | None = None) -> Checkpoint:
    """Open a Hugging Face folder or a GGUF file.

    `weight_cache` is a folder (made where it is missing) that keeps expanded weights of quantised files, so that
    the next start maps them instead of expanding them again; None keeps nothing.

    Raises:
        UnsupportedCheckpoint: it is neither, or it holds a key or a tensor that cannot be served.
    """
    if path.is_dir():
        return HFCheckpoint(path)
    checkpoint = GGUFCheckpoint(path)
    if weight_cache is None or not checkpoint.block_formats:
        return checkpoint
    return CachedCheckpoint(checkpoint, weight_cache)
