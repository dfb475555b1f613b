"""How large everything is: as a GPU needs it to say something, and as an interpreter on a CPU can bear it."""

from dataclasses import dataclass

import torch

from benchmarks.gpu.paged import Heads
from engine.config import LARGE_GPU_SIZES


@dataclass(frozen=True, slots=True)
class Tuning:
    """Candidates of the attention kernels' tables: (key tile, warps, stages, programs of a multiprocessor), as many as
    it has registers and shared memory for, and (query tile, key tile, warps, stages)."""

    decode: tuple[tuple[int, int, int, int], ...]
    extend: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Latents:
    """Heads of latent attention: how many, the rotated dimensions and others of their keys, those of their values and
    of the latent."""

    heads: int
    rotated: int
    key_dim: int
    value_dim: int
    rank: int

    def __str__(self) -> str:
        return f"{self.heads} heads over {self.rank} and {self.rotated} rotated"


@dataclass(frozen=True, slots=True)
class Scale:
    """dtypes: what kernels are checked in. fp8_stores: whether rounding to fp8 is that of the device.

    kv_bytes: the most KV memory that attention is measured over. rotated_bytes: what a set of inputs has to be larger
    than, so that no cache holds it from one call to the next.
    product, product_rows: outputs and inputs of the products that are measured, and their rows. checked_product,
    checked_rows: of those that are checked. few_rows: rows of the products with plain weights that are not cuBLAS's.
    adapted_tokens: of a step with adapters whose tiles are those of many tokens. adapted_ranks: of their slots.
    checked_mixture: tokens, experts, experts of a token, hidden and inner sizes.
    models: which of `benchmarks.gpu.models.SHAPES` are served. slots, prompt_tokens, output_tokens: of the saturated
    measurement, `steady_seconds` long. peer_tokens: steps that transformers' decoding is timed over.
    """

    copy_bytes: int
    matmul_size: int
    repeats: int
    dtypes: tuple[torch.dtype, ...]
    fp8_stores: bool
    head_dims: tuple[Heads, ...]
    latents: tuple[Latents, ...]
    long_context: int
    chunk: int
    vocab_sizes: tuple[int, ...]
    sampled_rows: int
    graph_slots: int
    golden_prompts: tuple[int, ...]
    golden_tokens: int
    golden_toggles: tuple[str, ...]
    attention_heads: Heads
    decode_batches: tuple[int, ...]
    decode_contexts: tuple[int, ...]
    extend_tokens: tuple[int, ...]
    kv_bytes: int
    rotated_bytes: int
    swept_batch: int
    product: tuple[int, int]
    product_rows: tuple[int, ...]
    checked_product: tuple[int, int]
    checked_rows: tuple[int, ...]
    few_rows: tuple[int, ...]
    adapted_tokens: int
    adapted_ranks: tuple[int, ...]
    checked_mixture: tuple[int, int, int, int, int]
    tuning: Tuning
    models: tuple[str, ...]
    slots: int
    step_tokens: int
    prompt_tokens: int
    output_tokens: int
    steady_seconds: float
    ttft_tokens: tuple[int, ...]
    ttft_rounds: int
    decode_steps: int
    peer_tokens: int


FULL = Scale(
    copy_bytes=2 << 30,
    matmul_size=8192,
    repeats=20,
    dtypes=(torch.bfloat16, torch.float16, torch.float32),
    fp8_stores=True,
    head_dims=(Heads(3, 3, 64), Heads(4, 1, 80), Heads(4, 1, 96), Heads(2, 2, 256), Heads(2, 8, 512)),
    latents=(Latents(16, 64, 128, 128, 512), Latents(20, 64, 192, 256, 512), Latents(128, 64, 128, 128, 512)),
    long_context=5000,
    chunk=700,
    vocab_sizes=(5003, 128_256),
    sampled_rows=24,
    graph_slots=64,
    golden_prompts=(1, 5, 16, 17, 40, 70),
    golden_tokens=24,
    golden_toggles=("whole prompts", "chunks of 7", "preempted", "a small pool"),
    attention_heads=Heads(8, 4, 128),
    decode_batches=(1, 8, 64, 256),
    decode_contexts=(1024, 8192, 32_768),
    extend_tokens=(1024, 8192),
    kv_bytes=40 << 30,
    rotated_bytes=1 << 30,
    swept_batch=8,
    product=(4096, 14_336),
    product_rows=(1, 16, 64, 2048),
    checked_product=(4100, 4096),
    checked_rows=(1, 17, 100, 300),
    few_rows=(1, 3, 16),
    adapted_tokens=600,
    adapted_ranks=(8, 16, 32, 64),
    checked_mixture=(300, 16, 4, 512, 384),
    tuning=Tuning(
        decode=(
            *((64, 4, 5, programs) for programs in (1, 2, 3)),
            *((64, 4, stages, 3) for stages in (3, 7)),
            *((32, 4, stages, 3) for stages in (3, 5, 7)),
            *((32, 2, stages, 4) for stages in (5, 7)),
            *((64, 2, 5, 3), (128, 8, 3, 2)),
        ),
        extend=(
            *((128, 64, 8, stages) for stages in (3, 5, 7)),
            *((128, 128, 8, stages) for stages in (3, 5)),
            *((64, 64, 4, stages) for stages in (3, 5)),
            (128, 32, 8, 5),
        ),
    ),
    models=("llama-3.2-1b", "llama-3.1-8b"),
    slots=LARGE_GPU_SIZES.max_running,
    step_tokens=LARGE_GPU_SIZES.step_tokens,
    prompt_tokens=1000,
    output_tokens=1000,
    steady_seconds=10.0,
    ttft_tokens=(1024, 8192),
    ttft_rounds=5,
    decode_steps=200,
    peer_tokens=24,
)

SMALL = Scale(
    copy_bytes=1 << 16,
    matmul_size=64,
    repeats=2,
    dtypes=(torch.float16,),
    fp8_stores=False,
    head_dims=(Heads(1, 2, 80),),
    latents=(Latents(3, 8, 16, 24, 24),),
    long_context=530,
    chunk=20,
    vocab_sizes=(1000,),
    sampled_rows=8,
    graph_slots=2,
    golden_prompts=(17,),
    golden_tokens=4,
    golden_toggles=("preempted",),
    attention_heads=Heads(1, 2, 64),
    decode_batches=(1, 2),
    decode_contexts=(40, 600),
    extend_tokens=(24,),
    kv_bytes=1 << 18,
    rotated_bytes=1 << 17,
    swept_batch=1,
    product=(72, 256),
    product_rows=(1, 65),
    checked_product=(72, 256),
    checked_rows=(1, 40),
    few_rows=(3,),
    adapted_tokens=40,
    adapted_ranks=(8,),
    checked_mixture=(5, 4, 2, 128, 128),
    tuning=Tuning(decode=((32, 4, 3, 3),), extend=((32, 32, 4, 3),)),
    models=("tiny",),
    slots=2,
    step_tokens=64,
    prompt_tokens=6,
    output_tokens=4,
    steady_seconds=0.1,
    ttft_tokens=(12,),
    ttft_rounds=1,
    decode_steps=2,
    peer_tokens=4,
)
