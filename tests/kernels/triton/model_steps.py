"""A whole model's logits through prefill, chunks and decode."""

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import Quantize
from engine.models.loader import load_model
from engine.models.transformer import Transformer
from kernels.ops import AttentionMetadata, Ops
from tests.support.kernel_tensors import DEVICE
from tests.support.tiny_tokenizer import VOCAB_SIZE

NUM_BLOCKS = 9

STEPS = [
    ((17, 0),),  # (tokens, computed before) of each row
    ((1, 17), (3, 0)),
    ((1, 18), (1, 3)),
]
"""Two sequences: the prefill of one, a step of its decode and the other's chunk, and one that decodes both."""

BLOCKS = ((4, 8), (0, 7))


def loaded(folder: Path, ops: Ops, quantize: Quantize = "none") -> Transformer:
    return load_model(open_checkpoint(folder), ops, 64, quantize=quantize)


def metadata(step: Sequence[tuple[int, int]]) -> AttentionMetadata:
    tables = torch.tensor(BLOCKS[: len(step)])
    return AttentionMetadata(
        tables.to(DEVICE), [tokens for tokens, _ in step], [before + tokens for tokens, before in step]
    )


@torch.inference_mode()
def logits_of(model: Transformer) -> torch.Tensor:
    """Logits of all tokens of the steps, one step after another on one KV pool, poisoned before."""
    kv = model.allocate_kv(NUM_BLOCKS)
    kv.copy_(torch.full_like(kv, torch.nan, dtype=torch.float32))
    generator = torch.Generator().manual_seed(1)
    collected = []
    for step in STEPS:
        count = sum(tokens for tokens, _ in step)
        token_ids = torch.randint(0, VOCAB_SIZE, (count,), generator=generator).to(model.ops.device)
        hidden = model.forward(token_ids, model.ops.plan_attention(metadata(step)), kv)
        collected.append(model.logits(hidden))
    return torch.cat(collected).cpu()
