"""Details of a loaded model for its operators: its files, their format, and the memory it takes."""

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.checkpoint import Checkpoint
from engine.config import Quantize
from engine.memory.kv_memory import KVPool
from engine.models.sources import BlockSource


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """`path`: its file or folder. `quantization`: formats of the quantised matrices, or "none". `weight_bytes`: size of
    the stored weights. `kv_bytes`: size of the KV pool, with its draft model's."""

    path: Path
    format: str
    quantization: str
    weight_bytes: int
    kv_bytes: int


def model_details(path: Path, checkpoint: Checkpoint, quantize: Quantize, pool: KVPool) -> ModelDetails:
    """`quantize`: the format that matrices are converted to while they are loaded."""
    formats = (
        sorted({each.description for each in checkpoint.quantized.values()})
        if isinstance(checkpoint, BlockSource)
        else []
    )
    if quantize != "none":
        formats.append(f"{quantize} (on loading)")
    return ModelDetails(
        path,
        "Hugging Face folder" if path.is_dir() else "GGUF file",
        ", ".join(formats) or "none",
        checkpoint.weight_bytes,
        pool.num_blocks * pool.block_bytes + pool.spare_bytes,
    )
