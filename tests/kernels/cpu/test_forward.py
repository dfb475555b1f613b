"""The native forward pass: close to the ops one by one, and to the bit the same for a token however it is computed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from kernels import reference, weights
from kernels.arrays import int_array
from kernels.cpu import native
from kernels.cpu.native import NativeForward
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from kernels.exchange import array_of, tensor_of
from kernels.host import StepRows
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata, HeadNorms, RopeRows
from kernels.reference_int8 import from_int8, scales_of, to_int8
from tests.kernels.cpu.faces import dense, optional_array

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

EPS = 1e-5
POSITIONS = 320


@dataclass(frozen=True)
class Config:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden: int = 64
    inner: int = 96
    vocab: int = 101
    layers: int = 2
    rotary: int = 16
    biases: bool = False
    head_norms: bool = False
    windows: tuple[int | None, ...] = (None, None)


CONFIGS = {
    "plain": Config(),
    "one KV head a head, odd vocabulary and inner size": Config(heads=2, kv_heads=2, hidden=48, inner=37, vocab=33),
    "groups of three": Config(heads=9, kv_heads=3, head_dim=64, hidden=96, rotary=64),
    "groups of four, biases": Config(heads=8, kv_heads=2, biases=True),
    "norms of heads": Config(head_dim=32, rotary=32, head_norms=True),
    "windows": Config(windows=(8, None)),
    "part of the head rotated": Config(head_dim=32, rotary=8),
    "an odd hidden size": Config(hidden=41, inner=50),
}


class Layer:
    """One layer's numbers, in bf16."""

    def __init__(self, config: Config, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn((rows, columns), generator=generator) / math.sqrt(columns)).bfloat16()

        def bias(rows: int) -> Tensor | None:
            return torch.randn(rows, generator=generator).bfloat16() / 4 if config.biases else None

        def norm(size: int) -> Tensor:
            return (1 + torch.randn(size, generator=generator) / 8).bfloat16()

        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.projections = [weight(rows, config.hidden) for rows in (queries, keys, keys)]
        self.qkv_bias = bias(queries + 2 * keys)
        self.output, self.output_bias = weight(config.hidden, queries), bias(config.hidden)
        self.gate, self.up = weight(config.inner, config.hidden), weight(config.inner, config.hidden)
        self.gate_up_bias = bias(2 * config.inner)
        self.down, self.down_bias = weight(config.hidden, config.inner), bias(config.hidden)
        self.attention_norm, self.mlp_norm = norm(config.hidden), norm(config.hidden)
        norms = HeadNorms(norm(config.head_dim), norm(config.head_dim), EPS)
        self.head_norms = norms if config.head_norms else None


class Model:
    def __init__(self, config: Config) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(11)
        self.table = torch.randn((config.vocab, config.hidden), generator=generator).bfloat16()
        self.final_norm = (1 + torch.randn(config.hidden, generator=generator) / 8).bfloat16()
        self.layers = [Layer(config, seed) for seed in range(config.layers)]
        angles = torch.outer(torch.arange(POSITIONS).float(), 100.0 ** -torch.linspace(0, 1, config.rotary // 2))
        self.cos, self.sin = angles.cos(), angles.sin()

    def native(self, kv_places: tuple[tuple[int, int], ...] = ()) -> NativeForward:
        ops, config = NativeOps(2), self.config
        layers = []
        for layer in self.layers:
            norms = layer.head_norms
            packed = weights.LayerWeights(
                attention_norm=ops.vector(array_of(layer.attention_norm)),
                qkv=ops.pack_parts([dense(part) for part in layer.projections], optional_array(layer.qkv_bias)),
                head_norms=None
                if norms is None
                else weights.HeadNorms(ops.vector(array_of(norms.query)), ops.vector(array_of(norms.key)), norms.eps),
                output=ops.pack_parts([dense(layer.output)], optional_array(layer.output_bias)),
                mlp_norm=ops.vector(array_of(layer.mlp_norm)),
                mlp=weights.MlpWeights(
                    gate_up=ops.pack_gate_up(dense(layer.gate), dense(layer.up), optional_array(layer.gate_up_bias)),
                    down=ops.pack_parts([dense(layer.down)], optional_array(layer.down_bias)),
                ),
            )
            layers.append(packed)
        embedding = ops.pack_embedding(dense(self.table))
        cos, sin = self.cos.numpy(), self.sin.numpy()
        shape = weights.ModelShape(
            config.heads,
            config.kv_heads,
            config.head_dim,
            EPS,
            config.windows,
            cos=cos,
            sin=sin,
            kv_places=kv_places,
        )
        final_norm = ops.vector(array_of(self.final_norm))
        return ops.forward_pass(shape, weights.ModelWeights(embedding, layers, final_norm, ops.tied_head(embedding)))

    def reference(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states of a sequence, and its KV [layers, T, 2, Hkv, D], in float32 from beginning to end."""
        config, tokens = self.config, len(token_ids)
        rope = RopeRows(self.cos[:tokens, None], self.sin[:tokens, None])
        blocks = -(-tokens // BLOCK_TOKENS)
        metadata = AttentionMetadata(torch.arange(blocks)[None], [tokens], [tokens])
        residual, stored = self.table.float()[token_ids], []
        for layer, window in zip(self.layers, config.windows, strict=True):
            kv = torch.zeros((blocks, BLOCK_TOKENS, 2, config.kv_heads, config.head_dim))
            x = reference.rms_norm(residual, layer.attention_norm.float(), EPS)
            qkv = _linear(x, torch.cat(layer.projections), layer.qkv_bias).view(tokens, -1, config.head_dim)
            norms = layer.head_norms
            wide = None if norms is None else HeadNorms(norms.query.float(), norms.key.float(), EPS)
            query = reference.rotate_and_store(qkv, wide, rope, kv, metadata.slot_mapping)
            attended = reference.attend(query, kv, metadata, window).flatten(1)
            residual = residual + _linear(attended, layer.output, layer.output_bias)
            x = reference.rms_norm(residual, layer.mlp_norm.float(), EPS)
            gate, up = _linear(x, torch.cat((layer.gate, layer.up)), layer.gate_up_bias).chunk(2, dim=1)
            residual = residual + _linear(silu(gate) * up, layer.down, layer.down_bias)
            stored.append(kv.flatten(0, 1)[:tokens])
        return reference.rms_norm(residual, self.final_norm.float(), EPS), torch.stack(stored)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return reference.linear(x, weight.float(), None if bias is None else bias.float())


class Sequences:
    """Sequences computed step by step on one KV pool. What no sequence has written is NaN."""

    def __init__(self, model: Model, forward: NativeForward, tokens: Sequence[Tensor], *, int8: bool = False) -> None:
        self.model, self.forward, self.tokens = model, forward, tokens
        config = model.config
        counts = [-(-len(each) // BLOCK_TOKENS) for each in tokens]
        order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(5))
        self.tables = torch.full((len(tokens), max(counts)), int(order[-1]))
        first = 0
        for row, count in enumerate(counts):
            self.tables[row, :count] = order[first : first + count]
            first += count
        shape = (config.layers, len(order), BLOCK_TOKENS, 2, config.kv_heads, config.head_dim)
        self.kv = torch.full(shape, math.nan, dtype=torch.bfloat16)
        if int8:
            self.kv = to_int8(self.kv)
        self.computed = [0] * len(tokens)
        self.hidden: list[list[Tensor]] = [[] for _ in tokens]

    def step(self, takes: dict[int, int], wanted: Sequence[int] | None = None) -> None:
        """Compute `takes` more tokens of some of the sequences; the last `wanted` hidden states of each, or all."""
        rows = list(takes)
        ids = [self.tokens[row][self.computed[row] :][: takes[row]] for row in rows]
        for row in rows:
            self.computed[row] += takes[row]
        step = StepRows(
            self.tables[rows].numpy(), int_array(list(takes.values())), int_array([self.computed[row] for row in rows])
        )
        counts = list(takes.values() if wanted is None else wanted)
        parts = torch.arange(sum(takes.values())).split(list(takes.values()))
        last = torch.cat([part[-count:] for part, count in zip(parts, counts, strict=True)]).numpy()
        token_ids, kv = torch.cat(ids).numpy(), array_of(self.kv)
        hidden = tensor_of(self.forward(token_ids, step, kv, None if wanted is None else last))
        for row, part in zip(rows, hidden.split(counts), strict=True):
            self.hidden[row].append(part)

    def all_hidden(self, row: int) -> Tensor:
        return torch.cat(self.hidden[row])

    def stored(self, row: int) -> Tensor:
        """[layers, T, 2, Hkv, D] of a sequence."""
        blocks = self.tables[row, : -(-len(self.tokens[row]) // BLOCK_TOKENS)]
        kv, config = self.kv[:, blocks], self.model.config
        if kv.dtype == torch.int8:
            kv = from_int8(kv, config.kv_heads, config.head_dim)
        return kv.flatten(1, 2)[:, : len(self.tokens[row])]


def sequence(config: Config, length: int, seed: int = 0) -> Tensor:
    return torch.randint(config.vocab, (length,), generator=torch.Generator().manual_seed(seed))


def in_one(model: Model, forward: NativeForward, tokens: Tensor, *, int8: bool = False) -> Sequences:
    alone = Sequences(model, forward, [tokens], int8=int8)
    alone.step({0: len(tokens)})
    return alone


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    native.start(2)
    yield
    native.start(1)


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param)


def test_it_is_close_to_the_ops_in_float32(model: Model) -> None:
    tokens = sequence(model.config, 45)
    expected, stored = model.reference(tokens)
    computed = in_one(model, model.native(), tokens)
    for actual, wanted in ((computed.all_hidden(0), expected), (computed.stored(0), stored)):
        error = (actual.float() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert error.max() < 0.03, "more than what rounding activations to bf16 makes"
        assert error.mean() < 0.01


def test_int8_kv_is_close_to_bf16(model: Model) -> None:
    tokens, forward = sequence(model.config, 45), model.native()
    exact, computed = in_one(model, forward, tokens), in_one(model, forward, tokens, int8=True)
    first = exact.stored(0)[0]
    assert ((computed.stored(0)[0] - first.float()).abs() <= scales_of(first)[..., None] / 2).all(), (
        "the first layer's keys and values"
    )
    error = (computed.all_hidden(0).float() - exact.all_hidden(0)).norm(dim=-1) / exact.all_hidden(0).norm(dim=-1)
    assert 0 < error.mean() < 0.03, "int8 KV changes hidden states by less than 3 % on average"


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 33])
def test_chunks_change_no_bit(model: Model, chunk: int, int8: bool) -> None:
    tokens = sequence(model.config, 70)
    forward = model.native()
    expected = in_one(model, forward, tokens, int8=int8)
    chunked = Sequences(model, forward, [tokens], int8=int8)
    while chunked.computed[0] < len(tokens):
        chunked.step({0: min(chunk, len(tokens) - chunked.computed[0])})
    assert torch.equal(chunked.all_hidden(0), expected.all_hidden(0))
    assert torch.equal(chunked.stored(0), expected.stored(0))


def test_neighbours_change_no_bit(model: Model) -> None:
    """Prompts, decodes and rows with drafts in one step."""
    lengths = (70, 20, 33, 5, 64)
    tokens = [sequence(model.config, length, seed) for seed, length in enumerate(lengths)]
    forward = model.native()
    together = Sequences(model, forward, tokens)
    together.step({3: 4, 1: 16})
    together.step({3: 1, 1: 3, 4: 64})
    together.step({1: 1, 2: 33, 0: 70})
    for row, each in enumerate(tokens):
        alone = in_one(model, forward, each)
        assert torch.equal(together.all_hidden(row), alone.all_hidden(0))
        assert torch.equal(together.stored(row), alone.stored(0))


def test_kv_in_groups_changes_no_bit() -> None:
    """Each layer is in a group of its own. What the window has passed is in no block of the row any more."""
    model, tokens, block = Model(CONFIGS["windows"]), sequence(CONFIGS["windows"], 70), BLOCK_TOKENS
    expected = in_one(model, model.native(), tokens).all_hidden(0)
    grouped = model.native(((1, 0), (0, 0)))
    config = model.config
    kv = torch.full((1, 11, block, 2, config.kv_heads, config.head_dim), math.nan, dtype=torch.bfloat16)
    full, windowed = int_array([[7, 2, 9, 0, 4]]), int_array([[5, 1, 8, 3, 6]])
    hidden = []
    for begin, end in ((0, 40), (40, 41), (41, 70)):
        windowed[0, : max(0, begin - 7) // block] = 10
        rows = StepRows(full, int_array([end - begin]), int_array([end]), window_tables=(windowed,))
        hidden.append(tensor_of(grouped(tokens[begin:end].numpy(), rows, array_of(kv))))
    assert torch.equal(torch.cat(hidden), expected)
    assert kv[0, 10].isnan().all()


def test_kv_in_groups_that_rows_share_changes_no_bit() -> None:
    """Rows share a prompt's blocks in the first group, whose tasks are cut for it, and none in the other."""
    config, rows, prompt = CONFIGS["windows"], 9, 8 * BLOCK_TOKENS
    model, blocks = Model(config), prompt // BLOCK_TOKENS + 1
    plain, grouped = model.native(), model.native(((1, 0), (0, 0)))
    tokens = [torch.cat((sequence(config, prompt), sequence(config, 1, seed))) for seed in range(rows)]
    expected = [in_one(model, plain, each).all_hidden(0)[-1] for each in tokens]
    shape = (BLOCK_TOKENS, 2, config.kv_heads, config.head_dim)
    kv = torch.full((1, 2 * rows * blocks, *shape), math.nan, dtype=torch.bfloat16)
    own = np.arange(rows * blocks).reshape(rows, blocks)
    full, windowed = own.copy(), own + rows * blocks
    full[:, :-1] = full[0, :-1]
    for row in range(rows):
        first = StepRows(
            full[row : row + 1], int_array([prompt]), int_array([prompt]), None, (windowed[row : row + 1],)
        )
        grouped(tokens[row][:-1].numpy(), first, array_of(kv))
    last = StepRows(full, np.ones(rows, dtype=np.int64), int_array([prompt + 1] * rows), None, (windowed,))
    hidden = tensor_of(grouped(torch.cat([each[-1:] for each in tokens]).numpy(), last, array_of(kv)))
    assert torch.equal(hidden, torch.stack(expected))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_bit(model: Model, threads: int) -> None:
    tokens = sequence(model.config, 70)
    forward = model.native()
    expected = in_one(model, forward, tokens).all_hidden(0)
    native.start(threads)
    assert torch.equal(in_one(model, forward, tokens).all_hidden(0), expected)


@pytest.mark.parametrize("wanted", [(1, 1, 1, 1), (4, 1, 3, 33), (1, 2, 7, 300)], ids=str)
def test_hidden_states_that_nobody_reads_change_no_bit(model: Model, wanted: Sequence[int]) -> None:
    lengths = (4, 70, 33, 300)
    tokens = [sequence(model.config, length, seed) for seed, length in enumerate(lengths)]
    forward = model.native()
    all_of_them, some = Sequences(model, forward, tokens), Sequences(model, forward, tokens)
    for sequences in (all_of_them, some):
        sequences.step({1: 40})
    all_of_them.step({0: 4, 1: 30, 2: 33, 3: 200})
    all_of_them.step({3: 100})
    some.step({0: 4, 1: 30, 2: 33, 3: 200}, [*wanted[:3], 1])
    some.step({3: 100}, [min(wanted[3], 100)])
    for row, count in enumerate(wanted):
        last = min(count, 100)
        assert torch.equal(some.hidden[row][-1], all_of_them.hidden[row][-1][-last:])
        assert torch.equal(some.stored(row), all_of_them.stored(row))


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "int8"])
def test_a_nan_is_carried_to_the_last_token_of_its_row(model: Model, int8: bool) -> None:
    """As far as the last layer sees, which is everything here."""
    assert model.config.windows[-1] is None
    model.table[7] = math.nan
    broken, sound = sequence(model.config, 70).clamp(min=8), sequence(model.config, 70, 1).clamp(min=8)
    broken[3] = 7
    sequences = Sequences(model, model.native(), [broken, sound], int8=int8)
    sequences.step({0: 20, 1: 20}, [1, 1])
    sequences.step({0: 50, 1: 50}, [1, 1])
    assert all(part.isnan().all() for part in sequences.hidden[0])
    assert all(part.isfinite().all() for part in sequences.hidden[1])


def test_other_blocks_stay_as_they_were(model: Model) -> None:
    sequences = in_one(model, model.native(), sequence(model.config, 20))
    written = torch.zeros(sequences.kv.shape[1:3], dtype=torch.bool)
    written[sequences.tables[0, 0]] = True
    written[sequences.tables[0, 1], :4] = True
    assert sequences.kv[:, ~written].isnan().all()
    assert sequences.kv[:, written].isfinite().all()


@pytest.mark.parametrize("head_dim", [63, 578])
def test_heads_that_attention_has_no_room_for_are_refused(head_dim: int) -> None:
    model = Model(Config(heads=2, kv_heads=1, head_dim=head_dim))
    with pytest.raises(AssertionError, match=f"heads of {head_dim} dimensions"):
        in_one(model, model.native(), sequence(model.config, 3))


def test_no_tokens_have_no_hidden_states(model: Model) -> None:
    states = in_one(model, model.native(), sequence(model.config, 0)).all_hidden(0)
    assert states.shape == (0, model.config.hidden)


def test_tables_whose_rows_are_not_contiguous_are_refused() -> None:
    model = Model(Config())
    pair = Sequences(model, model.native(), [sequence(model.config, 40), sequence(model.config, 40, 1)])
    rows = StepRows(np.asfortranarray(pair.tables.numpy()), int_array([40, 40]), int_array([40, 40]))
    with pytest.raises(AssertionError, match="rows are not contiguous"):
        pair.forward(torch.cat(list(pair.tokens)).numpy(), rows, array_of(pair.kv))


def test_a_step_of_more_tokens_than_any_before(model: Model) -> None:
    """The memory that a pass computes in grows."""
    forward = model.native()
    first = in_one(model, forward, sequence(model.config, 3)).all_hidden(0)
    in_one(model, forward, sequence(model.config, 200))
    assert torch.equal(in_one(model, forward, sequence(model.config, 3)).all_hidden(0), first)
