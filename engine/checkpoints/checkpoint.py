"""The interface of a checkpoint, independent of its file format.

Tensors have Hugging Face's names and layouts (`model.layers.0.self_attn.q_proj.weight` of shape [out_features,
in_features], half-split rope), so that the loader knows one convention.
"""

from pathlib import Path
from typing import Protocol

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.checkpoints.weight_cache import CachedCheckpoint
from engine.models.sources import WeightSource
from engine.sampling_defaults import SamplingDefaults
from engine.text.processor import TextProcessor


class Checkpoint(WeightSource, Protocol):
    """An opened, validated checkpoint. Opening reads headers only; `tensors` reads the weights."""

    @property
    def path(self) -> Path: ...

    @property
    def sampling_defaults(self) -> SamplingDefaults: ...

    def text_processor(self) -> TextProcessor: ...


def open_checkpoint(path: Path, weight_cache: Path | None = None) -> Checkpoint:
    """Open a Hugging Face folder or a GGUF file.

    `weight_cache`: folder, created if missing, for the expanded weights of quantised files, which the next start maps
    instead of expanding them again; None disables the cache.

    Raises:
        UnsupportedCheckpoint: the path is neither, or the checkpoint has a key or tensor that cannot be served.
    """
    if path.is_dir():
        return HFCheckpoint(path)
    checkpoint = GGUFCheckpoint(path)
    if weight_cache is None or not checkpoint.quantized:
        return checkpoint
    return CachedCheckpoint(checkpoint, weight_cache)
