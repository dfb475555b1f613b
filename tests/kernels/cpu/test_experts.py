"""A mixture of experts on the native library: against the reference in float32, and to the bit against the products of
one expert after another, at every level, in every format, on any number of threads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from torch.nn.functional import gelu, silu

from kernels import reference
from kernels.arrays import BFLOAT16, Array, Floats, Ints, address
from kernels.cpu.native import NativeLinear, start
from kernels.cpu.native.abi import Format, Level, Store
from kernels.cpu.native.experts import NativeMixture, mlp, routing
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from kernels.exchange import array_of, tensor_of
from kernels.integers import GroupedIntegers
from kernels.weights import PLAIN_ROUTING, ExpertWeights, MlpWeights, RoutingRule, StoredWeight
from tests.kernels.cpu.paged import levels

library = load()
if library is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

Matrices = tuple[Array, Array, Array]
"""Gate and up [F, H], down [H, F]."""

EXPERTS, PER_TOKEN = 6, 2
FORMATS = ("dense", "int8", "int4", "q4_0", "q5_1", "q8_0", "w8a8")

each_level = pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    level = library.tp_level()
    yield
    library.tp_use_level(level)
    start(1)


def random(*shape: int, seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-1])
    return numbers.astype(BFLOAT16)


def stored(rows: Array, format: str) -> StoredWeight:
    outputs, inputs = rows.shape
    if format in ("dense", "int8", "int4"):
        return StoredWeight(format, rows, outputs, inputs)
    if format != "w8a8":
        blocks = quants.quantize(rows.astype(np.float32), GGMLQuantizationType[format.upper()])
        return StoredWeight(format, blocks, outputs, inputs)
    wide = rows.astype(np.float32)
    scales = np.abs(wide).max(axis=1, keepdims=True) / 127
    codes = (np.rint(wide / scales) + 128).astype(np.uint8)
    size = next(size for size in (128, 64, 32) if inputs % size == 0)
    blocks = GroupedIntegers(8, codes, scales.astype(np.float32), np.full(scales.shape, 128, np.uint8)).blocks(
        f"u8_{size}"
    )
    return StoredWeight(blocks.format, blocks.rows, outputs, inputs, rounded_inputs=True)


@dataclass(frozen=True)
class Case:
    """The sizes of a mixture, and what it has."""

    hidden: int = 48
    inner: int = 24
    renormalise: bool = True
    shared: bool = False
    gated: bool = False
    biases: bool = False
    format: str = "dense"
    per_token: int = PER_TOKEN
    favoured: tuple[int, ...] = ()
    """Experts that every token chooses first."""

    @property
    def router(self) -> Array:
        return random(EXPERTS, self.hidden, seed=1)

    @property
    def gate(self) -> Array:
        return random(1, self.hidden, seed=60)

    def matrices(self, seed: int) -> Matrices:
        shapes = ((self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner))
        gate, up, down = (random(*shape, seed=100 * seed + index) for index, shape in enumerate(shapes))
        return gate, up, down

    def bias(self, seed: int, outputs: int) -> Array | None:
        return random(1, outputs, seed=seed)[0].astype(np.float32) * outputs**0.5 if self.biases else None

    @property
    def mlps(self) -> list[Matrices]:
        return [self.matrices(10 + expert) for expert in range(EXPERTS)]

    def packed(self) -> ExpertWeights[Floats, NativeLinear]:
        ops = NativeOps(2)

        def packed_mlp(matrices: Matrices, seed: int) -> MlpWeights[NativeLinear]:
            gate, up, down = (stored(rows, self.format) for rows in matrices)
            return MlpWeights(
                ops.pack_gate_up(gate, up, self.bias(seed, 2 * len(matrices[0]))),
                ops.pack_parts([down], self.bias(seed + 1, self.hidden)),
            )

        router = ops.pack_parts([StoredWeight.dense(self.router)], None)
        experts = [packed_mlp(matrices, 200 + 2 * expert) for expert, matrices in enumerate(self.mlps)]
        choice_bias = np.zeros(EXPERTS, np.float32)
        choice_bias[list(self.favoured)] = 10
        return ExpertWeights(
            router,
            experts,
            self.per_token,
            self.renormalise,
            packed_mlp(replace(self, inner=2 * self.inner).matrices(50), 300) if self.shared else None,
            ops.pack_parts([StoredWeight.dense(self.gate)], None) if self.gated else None,
            choice_bias=choice_bias if self.favoured else None,
        )

    def expected(self, x: Array, activation: Store) -> torch.Tensor:
        """From the dense matrices."""
        wide = tensor_of(x).float()

        def of_mlp(matrices: Matrices, row: torch.Tensor, seed: int) -> torch.Tensor:
            gate, up, down = (tensor_of(matrix).float() for matrix in matrices)
            pairs = torch.cat((gate @ row, up @ row))
            bias, last = self.bias(seed, len(pairs)), self.bias(seed + 1, self.hidden)
            pairs = pairs if bias is None else pairs + tensor_of(bias)
            if activation == Store.CLAMPED_MUL:
                inner = reference.clamped_swiglu_mul(pairs[None])[0]
            else:
                first, second = pairs.chunk(2)
                inner = (silu(first) if activation == Store.SILU_MUL else gelu(first, approximate="tanh")) * second
            return down @ inner if last is None else down @ inner + tensor_of(last)

        chosen, shares = reference.route(wide @ tensor_of(self.router).float().T, self.per_token, self.renormalise)
        rows = []
        for token, row in enumerate(wide):
            pairs = zip(chosen[token].tolist(), shares[token], strict=True)
            total = torch.stack(
                [share * of_mlp(self.mlps[expert], row, 200 + 2 * expert) for expert, share in pairs]
            ).sum(0)
            if self.shared:
                weight = (tensor_of(self.gate).float()[0] @ row).sigmoid() if self.gated else 1
                total = total + weight * of_mlp(replace(self, inner=2 * self.inner).matrices(50), row, 300)
            rows.append(total)
        return torch.stack(rows)


def computed(
    weights: ExpertWeights[Floats, NativeLinear],
    x: Array,
    activation: Store = Store.SILU_MUL,
    routed: Array | None = None,
) -> tuple[Floats, Ints]:
    counts: Ints = np.zeros(EXPERTS, np.int64)
    return NativeMixture(weights, activation, counts)(x, routed), counts


def routed_by(weights: ExpertWeights[Floats, NativeLinear], logits: Floats) -> tuple[Ints, Floats]:
    bias = None if weights.choice_bias is None else address(weights.choice_bias)
    return natively_routed(logits, weights.per_token, weights.renormalise, weights.rule, bias)


def natively_routed(
    logits: Floats,
    per_token: int,
    renormalise: bool,
    rule: RoutingRule = PLAIN_ROUTING,
    choice_bias: int | None = None,
    share_scale: int | None = None,
) -> tuple[Ints, Floats]:
    struct = routing(logits.shape[1], per_token, renormalise, rule, choice_bias, share_scale)
    rows, logits = len(logits), logits.copy()
    chosen, shares = np.full((rows, per_token), -1, np.int64), np.empty((rows, per_token), np.float32)
    at = np.frombuffer(struct, np.uint8)
    scratch = np.empty(library.tp_route_scratch_bytes(address(at), rows), np.uint8)
    library.tp_route(
        address(at), address(logits), logits.shape[1], rows, address(chosen), address(shares), address(scratch)
    )
    return chosen, shares


def one_after_another(
    weights: ExpertWeights[Floats, NativeLinear], x: Array, activation: Store, routed: Array | None = None
) -> Floats:
    """The same sums from a product for each expert."""
    chosen, shares = routed_by(weights, weights.router.wide(x if routed is None else routed))
    total = np.zeros((len(x), weights.experts[0].down.out_features), np.float32)
    for expert in np.unique(chosen):
        tokens, ranks = np.nonzero(chosen == expert)
        total[tokens] += mlp(weights.experts[expert], x[tokens], activation) * shares[tokens, ranks, None]
    if weights.shared is not None:
        assert weights.shared_gate is None, "its sigmoid is of the library"
        total += mlp(weights.shared, x, activation)
    return total


@pytest.mark.parametrize("activation", [Store.SILU_MUL, Store.GELU_MUL, Store.CLAMPED_MUL], ids=lambda each: each.name)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("shared", "gated"), [(False, False), (True, False), (True, True)])
def test_equals_the_reference(activation: Store, biases: bool, renormalise: bool, shared: bool, gated: bool) -> None:
    case = Case(renormalise=renormalise, shared=shared, gated=gated, biases=biases)
    x = (3 * random(40, case.hidden, seed=5)).astype(BFLOAT16)
    actual, counts = computed(case.packed(), x, activation)
    torch.testing.assert_close(tensor_of(actual), case.expected(x, activation), atol=3e-2, rtol=2e-2)
    assert counts.sum() == 40 * PER_TOKEN


@each_level
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("activation", [Store.SILU_MUL, Store.CLAMPED_MUL], ids=lambda each: each.name)
def test_equals_the_products_of_one_expert_after_another_to_the_bit(
    level: Level, format: str, activation: Store
) -> None:
    library.tp_use_level(level)
    case = Case(hidden=128, inner=96, shared=True, format=format, biases=activation == Store.CLAMPED_MUL)
    weights = case.packed()
    stored_as = Format.BF16 if format == "dense" else Format[format.upper()]
    assert weights.experts[0].gate_up.struct.part[0].format == stored_as
    for rows in (1, 2, 9, 75, 200):
        x = random(rows, case.hidden, seed=rows)
        expected = one_after_another(weights, x, activation)
        assert np.abs(expected).max() > 0
        for threads in (1, 2, 5):
            start(threads)
            assert np.array_equal(computed(weights, x, activation)[0], expected), (rows, threads)


@each_level
@pytest.mark.parametrize("format", FORMATS)
def test_a_token_depends_on_itself_alone_to_the_bit(level: Level, format: str) -> None:
    library.tp_use_level(level)
    case = Case(hidden=64, inner=32, shared=True, gated=True, format=format)
    weights, x = case.packed(), random(67, case.hidden, seed=6)
    start(2)
    together, counts = computed(weights, x)
    alone = [computed(weights, row[None]) for row in x]
    assert np.array_equal(np.concatenate([each[0] for each in alone]), together)
    assert np.array_equal(sum(each[1] for each in alone), counts)
    for rows in (2, 3, 13, 49):
        assert np.array_equal(computed(weights, x[-rows:])[0], together[-rows:]), rows


def test_a_token_that_is_not_a_number_leaves_the_others_alone() -> None:
    case, x = Case(renormalise=False), random(9, 48, seed=7)
    clean, _ = computed(case.packed(), x)
    x[4, 3] = np.nan
    spoilt, counts = computed(case.packed(), x)
    assert np.isnan(spoilt[4]).any()
    others = [token for token in range(9) if token != 4]
    assert np.array_equal(spoilt[others], clean[others])
    assert counts.sum() == 9 * PER_TOKEN


def test_experts_that_no_token_chooses_are_not_read() -> None:
    case = Case(favoured=(1, 4))
    x, counts = random(20, case.hidden, seed=8), np.zeros(EXPERTS, np.int64)
    expected = one_after_another(case.packed(), x, Store.SILU_MUL)
    mixture = NativeMixture(case.packed(), Store.SILU_MUL, counts)
    for expert in (0, 2, 3, 5):
        mixture.struct.expert[expert].gate_up.part[0].packed = None
        mixture.struct.expert[expert].down.part[0].packed = None
    assert np.array_equal(mixture(x), expected)
    assert counts.tolist() == [0, 20, 0, 0, 20, 0]
    mixture(x[:3])
    assert counts.tolist() == [0, 23, 0, 0, 23, 0]


@pytest.mark.parametrize(("per_token", "favoured"), [(1, (3,)), (1, ()), (3, (5,)), (EXPERTS, ())])
@pytest.mark.parametrize("rows", [1, 31])
def test_any_number_of_experts_for_a_token(per_token: int, favoured: tuple[int, ...], rows: int) -> None:
    weights = Case(per_token=per_token, favoured=favoured).packed()
    x = random(rows, 48, seed=9)
    actual, counts = computed(weights, x)
    assert np.array_equal(actual, one_after_another(weights, x, Store.SILU_MUL))
    assert all(counts[expert] == rows for expert in (range(EXPERTS) if per_token == EXPERTS else favoured))
    assert counts.sum() == rows * per_token


def test_no_tokens() -> None:
    actual, counts = computed(Case(shared=True).packed(), np.empty((0, 48), BFLOAT16))
    assert actual.shape == (0, 48)
    assert not counts.any()


def test_a_router_with_an_input_of_its_own() -> None:
    weights, x, routed = Case().packed(), random(12, 48, seed=10), random(12, 48, seed=11)
    actual, _ = computed(weights, x, routed=routed)
    assert np.array_equal(actual, one_after_another(weights, x, Store.SILU_MUL, routed))
    assert not np.array_equal(actual, computed(weights, x)[0])


@pytest.mark.parametrize(("hidden", "inner"), [(41, 50), (48, 37), (33, 16)])
def test_odd_sizes(hidden: int, inner: int) -> None:
    case = Case(hidden=hidden, inner=inner, shared=True)
    weights, x = case.packed(), random(15, hidden, seed=12)
    actual, _ = computed(weights, x)
    assert np.array_equal(actual, one_after_another(weights, x, Store.SILU_MUL))
    strided = np.zeros((15, hidden, 2), BFLOAT16)
    strided[:, :, 0] = x
    assert np.array_equal(computed(weights, strided[:, :, 0])[0], actual)


def test_experts_of_different_formats_and_widths() -> None:
    small, large = Case(hidden=64, inner=32, format="q4_0").packed(), Case(hidden=64, inner=96, format="w8a8").packed()
    experts = [(large if expert % 2 else small).experts[expert] for expert in range(EXPERTS)]
    weights, x = replace(small, experts=experts), random(40, 64, seed=13)
    assert np.array_equal(computed(weights, x)[0], one_after_another(weights, x, Store.SILU_MUL))


RULES = {
    "softmax": RoutingRule(),
    "scaled": RoutingRule(scale=2.5),
    "groups by their best": RoutingRule(groups=4, groups_per_token=2),
    "sigmoid": RoutingRule("sigmoid", 1.5),
    "groups by their best two": RoutingRule("sigmoid", 2.5, groups=4, groups_per_token=2, group_best=2),
}


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_routing_equals_the_reference(rule: RoutingRule, scaled: bool, biased: bool, renormalise: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn((200, 16), generator=generator)
    bias = 0.3 * torch.randn(16, generator=generator) if biased else None
    scale = torch.rand(16, generator=generator) if scaled else None
    experts, shares = reference.route(logits, 4, renormalise, rule, bias, scale)
    addresses = [None if each is None else each.data_ptr() for each in (bias, scale)]
    actual = natively_routed(array_of(logits), 4, renormalise, rule, *addresses)
    assert np.array_equal(actual[0], array_of(experts))
    torch.testing.assert_close(tensor_of(actual[1]), shares)


def test_of_equal_scores_the_lower_expert_is_chosen() -> None:
    logits = np.array([[1, 2, 2, 1, 2, 1], [0, 0, 0, 0, 0, 0], [-1, 3, -1, 3, 3, 4]], np.float32)
    assert natively_routed(logits, 3, True)[0].tolist() == [[1, 2, 4], [0, 1, 2], [5, 1, 3]]
    grouped = RoutingRule(groups=3, groups_per_token=2)
    assert natively_routed(logits, 3, True, grouped)[0].tolist() == [[1, 2, 0], [0, 1, 2], [5, 1, 4]]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_choose_different_experts(rule: RoutingRule, value: float) -> None:
    some: Sequence[int] = (1, 7, 8)
    logits = np.zeros((3, 16), np.float32)
    logits[0], logits[1, some] = value, value
    chosen, shares = natively_routed(logits, 4, True, rule)
    assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 16 for row in chosen.tolist())
    assert np.isfinite(shares[2]).all()
