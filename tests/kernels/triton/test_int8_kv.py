"""KV in int8 on a GPU: stored as its definition says, and read as what that stands for."""

import math

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.layout import BLOCK_TOKENS, LayerSize, MixedBlocks, int8_block_bytes, int8_layer_bytes
from kernels.ops import AttentionPlan, HeadNorms, RopeRows
from kernels.reference_int8 import from_int8, numbers_of, to_int8
from kernels.reference_ops import ReferenceOps, ReferencePlan
from kernels.triton.attention import attend
from kernels.triton.blocks import copy_blocks
from kernels.triton.ops import TritonOps
from kernels.triton.plan import SPLIT_TOKENS, plan_from_metadata
from kernels.triton.rotary import rotate_and_store
from kernels.weights import KVScales
from tests.kernels.triton.attention_cases import Heads, Step, make_step, only_row
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE, DTYPES, random
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint


def blocks_of(kv_layer: Tensor) -> Tensor:
    """The bytes [N, ...] of the blocks whose numbers are `kv_layer`, with the scales behind these."""
    _, _, _, kv_heads, head_dim = kv_layer.shape
    return kv_layer.as_strided((len(kv_layer), int8_block_bytes(kv_heads, head_dim)), (kv_layer.stride(0), 1))


class Int8Reference(ReferenceOps):
    """The reference with KV in int8."""

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        shape = (num_layers, num_blocks, int8_block_bytes(num_kv_heads, head_dim))
        return torch.zeros(shape, dtype=torch.int8, device=self.device)

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Tensor:
        shape = (1, num_blocks, blocks.starts(self.layer_size)[1])
        return torch.zeros(shape, dtype=torch.int8, device=self.device)

    @property
    def layer_size(self) -> LayerSize:
        return int8_layer_bytes

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: HeadNorms | None,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        scales: KVScales | None = None,
    ) -> Tensor:
        plain = torch.zeros(kv_layer.shape, dtype=qkv.dtype, device=self.device)
        query = reference.rotate_and_store(qkv, norms, rope, plain, slot_mapping)
        stored, kept = blocks_of(kv_layer), from_int8(blocks_of(kv_layer), *kv_layer.shape[-2:])
        written = torch.zeros(len(kv_layer) * BLOCK_TOKENS, dtype=torch.bool, device=self.device)
        written[slot_mapping[slot_mapping >= 0]] = True
        # Numbers that were stored before have the same codes and scales again.
        both = torch.where(written.view(-1, BLOCK_TOKENS)[:, :, None, None, None], plain.float(), kept)
        stored.copy_(to_int8(both))
        return query

    def attend(
        self,
        query: Tensor,
        kv_layer: Tensor,
        plan: AttentionPlan,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
        scales: KVScales | None = None,
        scale: float | None = None,
    ) -> Tensor:
        assert isinstance(plan, ReferencePlan)
        meant = from_int8(blocks_of(kv_layer), *kv_layer.shape[-2:])
        return reference.attend(query, meant, plan.metadata, window, cap, sinks, scale=scale)


def in_int8(step: Step) -> tuple[Step, Step]:
    """The step with its KV in int8, and with what that stands for. What must not be read has a NaN as its scale, and
    stands for 0: the definition multiplies it by 0."""
    kv = step.kv_layer
    blocks = to_int8(kv.bfloat16())
    kv_heads, head_dim = kv.shape[-2:]
    meant = from_int8(blocks, kv_heads, head_dim).nan_to_num(0.0).to(step.query.dtype)
    return (
        Step(step.query, numbers_of(blocks.to(DEVICE), kv_heads, head_dim), step.metadata),
        Step(step.query, meant, step.metadata),
    )


def attended(step: Step, window: int | None = None, sinks: Tensor | None = None) -> Tensor:
    plan = plan_from_metadata(step.metadata, DEVICE, decode_queries=4)
    return attend(step.query.to(DEVICE), step.kv_layer, plan, window, sinks=sinks).cpu()


@pytest.mark.parametrize(
    ("heads", "window"),
    [(Heads(), None), (Heads(kv=1, group=3, dim=80), 24), (Heads(kv=2, group=8, dim=64), 128)],
    ids=str,
)
def test_attention_is_that_over_what_the_integers_stand_for(heads: Heads, window: int | None) -> None:
    """Of decode rows over several splits, drafts and chunks; each row is the same alone."""
    lens, contexts = [1, 1, 4, 30], [SPLIT_TOKENS + 20, 0, 21, 75]
    step = make_step(lens, contexts, heads, dtype=torch.float16, window=window)
    stored, meant = in_int8(step)
    sinks = (
        torch.randn(heads.kv * heads.group, generator=torch.Generator().manual_seed(3)) if heads.group == 8 else None
    )
    expected = reference.attend(meant.query, meant.kv_layer, meant.metadata, window, sinks=sinks)
    actual = attended(stored, window, sinks)
    torch.testing.assert_close(actual, expected, rtol=5e-3, atol=5e-3)
    assert torch.equal(attended(only_row(stored, 0), window, sinks), actual[:1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "kv_heads", "head_dim", "rotated"), [(8, 2, 64, 64), (3, 1, 80, 32), (14, 3, 128, 128)]
)
def test_vectors_are_stored_with_scales_of_their_own(
    queries: int, kv_heads: int, head_dim: int, rotated: int, dtype: torch.dtype
) -> None:
    """Values, which nothing is computed of before, are the definition's to the bit; keys next to it, where a rounding
    before decides. All else stays."""
    qkv = random(4, queries + 2 * kv_heads, head_dim, dtype=dtype)
    qkv[1] *= 1e-3
    qkv[2, queries + kv_heads :] = 0
    angles = random(4, 1, rotated // 2, dtype=torch.float32, seed=1) * 3
    rope = RopeRows(angles.cos().to(dtype), angles.sin().to(dtype))
    slots = torch.tensor([40, 0, 15, -1], device=DEVICE)
    plain = torch.zeros(3, BLOCK_TOKENS, 2, kv_heads, head_dim, dtype=dtype, device=DEVICE)
    expected_query = reference.rotate_and_store(qkv.clone(), None, rope, plain, slots)
    blocks = torch.full((3, int8_block_bytes(kv_heads, head_dim)), 77, dtype=torch.int8, device=DEVICE)
    query = rotate_and_store(qkv, None, rope, numbers_of(blocks, kv_heads, head_dim), slots)
    torch.testing.assert_close(query, expected_query, rtol=2e-2, atol=2e-2)
    expected, untouched = to_int8(plain), torch.ones(3 * BLOCK_TOKENS, dtype=torch.bool, device=DEVICE)
    untouched[slots[:3]] = False
    of_tokens, meant = (numbers_of(each, kv_heads, head_dim).flatten(0, 1) for each in (blocks, expected))
    assert torch.equal(of_tokens[slots[:3], 1], meant[slots[:3], 1])
    assert (of_tokens[slots[:3], 0].int() - meant[slots[:3], 0].int()).abs().max() <= 1
    assert (of_tokens[untouched] == 77).all()
    actual, wanted = (from_int8(each, kv_heads, head_dim).flatten(0, 1)[slots[:3]] for each in (blocks, expected))
    assert torch.equal(actual[:, 1], wanted[:, 1])
    largest = wanted.abs().amax(-1, keepdim=True)
    assert ((actual - wanted).abs() <= largest / 60 + 1e-6).all()


def test_a_vector_that_is_not_finite_reads_as_nan() -> None:
    """So that the row that it belongs to is found to be wrong."""
    qkv = torch.ones(2, 3, 16, device=DEVICE)
    qkv[0, 2, 5] = qkv[1, 1, 3] = math.nan
    rope = RopeRows(torch.ones(2, 1, 8, device=DEVICE), torch.zeros(2, 1, 8, device=DEVICE))
    blocks = torch.zeros(1, int8_block_bytes(1, 16), dtype=torch.int8, device=DEVICE)
    rotate_and_store(qkv, None, rope, numbers_of(blocks, 1, 16), torch.tensor([3, 4], device=DEVICE))
    read = from_int8(blocks, 1, 16)[0, :, :, 0]
    assert read[3, 1].isnan().all()
    assert read[4, 0].isnan().all()
    assert torch.allclose(read[3, 0], torch.ones(16), rtol=1e-2)
    assert torch.allclose(read[4, 1], torch.ones(16), rtol=1e-2)


@pytest.mark.parametrize("family", ["llama", "gemma4_shared"])
def test_logits_of_a_model_are_those_of_the_reference(
    family: TinyFamily, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a pool of layers alike, and in one of mixed heads."""
    folder = make_checkpoint(tmp_path_factory.mktemp(family) / "model", family)
    actual = logits_of(loaded(folder, TritonOps(DEVICE, torch.float32, int8_kv=True)))
    expected = logits_of(loaded(folder, Int8Reference(DEVICE, torch.float32)))
    plain = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    moved = (expected - plain).norm()
    assert 1e-5 * plain.norm() < moved < 0.05 * plain.norm()
    # A number between two integers may be stored as either.
    assert (actual - expected).norm() < 0.3 * moved


def test_blocks_are_copied_with_their_scales() -> None:
    kv = TritonOps(DEVICE, torch.bfloat16, int8_kv=True).allocate_kv(2, 4, 2, 16)
    kv.copy_(torch.arange(kv.numel(), device=DEVICE).view(kv.shape) % 127)
    before = kv.clone()
    copy_blocks(kv, torch.tensor([3, 1], device=DEVICE), torch.tensor([0, 2], device=DEVICE))
    assert torch.equal(kv[:, [0, 2]], before[:, [3, 1]])
    assert torch.equal(kv[:, [1, 3]], before[:, [1, 3]])
