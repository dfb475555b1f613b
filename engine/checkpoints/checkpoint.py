"""A checkpoint as the model loader sees it, whatever file format it came in.

Tensors carry Hugging Face's names and layouts (`model.layers.0.self_attn.q_proj.weight` of shape
[out_features, in_features], half-split rope), so that the loader knows one convention.
"""

from pathlib import Path
from typing import Protocol

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.checkpoints.weight_cache import CachedCheckpoint
from engine.models.sources import WeightSource
from engine.text.processor import TextProcessor


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
