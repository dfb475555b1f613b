"""Rows of tokens over a paged KV, and calls of the native functions that work on them."""

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.cpu.native import Level
from kernels.cpu.native.abi import KV, Heads, Rows
from kernels.cpu.native.library import load
from kernels.layout import BLOCK_TOKENS, int8_block_bytes
from kernels.ops import AttentionMetadata
from kernels.reference_int8 import to_int8

bf16 = torch.bfloat16


@contextmanager
def using(level: Level, threads: int = 2) -> Iterator[ctypes.CDLL]:
    """The library at this level; skips where the processor has no such."""
    library = load()
    best = library.tp_level()
    try:
        if library.tp_use_level(level) != level:
            pytest.skip(f"this processor has no {level.name}")
        library.tp_use_threads(threads)
        yield library
    finally:
        library.tp_use_level(best)


def levels() -> list[Level]:
    """Those that this processor has, also such as are not used unless they are asked for."""
    if (library := load()) is None:
        return []
    usual = library.tp_level()
    most = library.tp_use_level(max(Level))
    library.tp_use_level(usual)
    return [level for level in Level if level <= most]


def vector_levels() -> list[Level]:
    """Those of which each has its own vectors; the ones above differ in products and scores alone."""
    return [level for level in levels() if level <= Level.AVX512_BF16]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(bf16)


def metadata_of(rows: list[tuple[int, int]], seed: int = 3) -> AttentionMetadata:
    """Rows of (query tokens, context tokens) over scattered blocks, of which three belong to no row."""
    blocks_of = [math.ceil(context / BLOCK_TOKENS) for _, context in rows]
    order = torch.randperm(sum(blocks_of) + 3, generator=torch.Generator().manual_seed(seed))
    tables = torch.full((len(rows), max(blocks_of)), -(2**40))  # what lies past a row's context is no block
    taken = 0
    for row, count in enumerate(blocks_of):
        tables[row, :count] = order[taken : taken + count]
        taken += count
    lens, contexts = tuple(tokens for tokens, _ in rows), tuple(context for _, context in rows)
    return AttentionMetadata(tables, lens, contexts)


def poisoned_kv(metadata: AttentionMetadata, kv_heads: int, head_dim: int, seed: int = 0) -> Tensor:
    """bf16 [N, 16, 2, Hkv, D]: random where a row's context lies, NaN in every other slot."""
    blocks = sum(math.ceil(context / BLOCK_TOKENS) for context in metadata.context_lens) + 3
    kv = torch.full((blocks * BLOCK_TOKENS, 2, kv_heads, head_dim), math.nan, dtype=bf16)
    for row, context in enumerate(metadata.context_lens):
        at = torch.arange(context)
        slots = metadata.block_tables[row, at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS
        kv[slots] = random(context, 2, kv_heads, head_dim, seed=seed + row)
    return kv.unflatten(0, (blocks, BLOCK_TOKENS))


def poisoned_int8(kv: Tensor) -> Tensor:
    """The same KV in int8 [N, bytes]: numbers that are full of ones, and NaN for scales, where there was NaN."""
    blocks = to_int8(kv)
    nothing = kv.isnan().all(-1)[..., None].expand(kv.shape).flatten(-4)
    blocks[:, : nothing.shape[-1]][nothing] = -1
    return blocks


@dataclass(frozen=True)
class NativeRows:
    """TpRows of a step, and what its pointers point to."""

    struct: Rows
    kept: tuple[Tensor, ...]


def native_rows(metadata: AttentionMetadata) -> NativeRows:
    lens, contexts = torch.tensor(metadata.query_lens), torch.tensor(metadata.context_lens)
    tables = metadata.block_tables.contiguous()
    struct = Rows(len(lens), int(lens.sum()), lens.data_ptr(), contexts.data_ptr(), tables.data_ptr(), tables.stride(0))
    return NativeRows(struct, (lens, contexts, tables))


def aligned(count: int) -> tuple[Tensor, int]:
    """`count` bytes, which lie among others: (all of them, where the first is), aligned to 64."""
    memory = torch.full((count + 192,), 0x5A, dtype=torch.uint8)
    return memory, 64 + (-memory.data_ptr()) % 64


def attend(
    library: ctypes.CDLL,
    query: Tensor,
    kv_layer: Tensor,
    metadata: AttentionMetadata,
    window: int | None,
    *,
    scale: float = 0.0,
    cap: float = 0.0,
    sinks: Tensor | None = None,
    keys_only: bool = False,
) -> Tensor:
    """tp_attend of query [T, Hq, D] over KV bf16 [N, 16, 2, Hkv, D], or [N, 16, 1, Hkv, D] of keys only, or int8
    [N, bytes].

    Fails where anything around its result or its scratch is written.
    """
    tokens, query_heads, head_dim = query.shape
    int8 = kv_layer.dtype == torch.int8
    kv_heads = kv_layer.shape[1] // int8_block_bytes(1, head_dim, 2 - keys_only) if int8 else kv_layer.shape[3]
    qkv = torch.cat((query.flatten(1), torch.full((tokens, 2 * kv_heads * head_dim + 6), math.nan, dtype=bf16)), dim=1)
    width, rows = query_heads * head_dim, native_rows(metadata)
    kind = KV.INT8 if int8 else KV.BF16
    heads = Heads(query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, kv=kind, keys_only=keys_only)
    heads.score_scale, heads.softcap = scale, cap
    heads.sinks = None if sinks is None else sinks.data_ptr()
    count = library.tp_attend_scratch_bytes(ctypes.byref(heads), ctypes.byref(rows.struct))
    scratch, first = aligned(count)
    assert count >= 0
    out = torch.full((tokens, width + 10), 7.0, dtype=bf16)
    library.tp_attend(
        ctypes.byref(heads),
        ctypes.byref(rows.struct),
        qkv.data_ptr(),
        qkv.stride(0),
        kv_layer.data_ptr(),
        window or 0,
        out.data_ptr(),
        out.stride(0),
        scratch.data_ptr() + first,
    )
    assert (out[:, width:] == 7).all()
    assert (scratch[:first] == 0x5A).all()
    assert (scratch[first + count :] == 0x5A).all()
    return out[:, :width].unflatten(1, (query_heads, head_dim))
