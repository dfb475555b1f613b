"""A mixture of experts on the native library, against the reference in float32."""

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

from kernels import reference
from kernels.arrays import BFLOAT16, Array, Floats, Ints
from kernels.cpu.native import NativeLinear
from kernels.cpu.native.abi import Store
from kernels.cpu.native.experts import mixture, route
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from kernels.exchange import array_of, tensor_of
from kernels.weights import ExpertWeights, MlpWeights, RoutingRule, StoredWeight

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

HIDDEN, INNER, EXPERTS, PER_TOKEN = 48, 24, 6, 2


def random(*shape: int, seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-1])
    return numbers.astype(BFLOAT16)


class Case:
    """Dense matrices of a mixture, and the same packed."""

    def __init__(self, *, renormalise: bool, shared: bool) -> None:
        self.ops, self.renormalise = NativeOps(2), renormalise
        self.router = random(EXPERTS, HIDDEN, seed=1)
        self.mlps = [self.matrices(seed) for seed in range(10, 10 + EXPERTS)]
        self.shared = self.matrices(50) if shared else None
        self.gate = random(1, HIDDEN, seed=60)

    def matrices(self, seed: int) -> tuple[Array, Array, Array]:
        shapes = ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
        gate, up, down = (random(*shape, seed=100 * seed + index) for index, shape in enumerate(shapes))
        return gate, up, down

    def packed(self) -> ExpertWeights[NativeLinear]:
        def linear(rows: Array) -> NativeLinear:
            return self.ops.pack_parts([StoredWeight.dense(rows)], None)

        def mlp(matrices: tuple[Array, Array, Array]) -> MlpWeights[NativeLinear]:
            gate, up, down = matrices
            packed = self.ops.pack_gate_up(StoredWeight.dense(gate), StoredWeight.dense(up), None)
            return MlpWeights(packed, linear(down))

        return ExpertWeights(
            linear(self.router),
            [mlp(matrices) for matrices in self.mlps],
            PER_TOKEN,
            self.renormalise,
            None if self.shared is None else mlp(self.shared),
            None if self.shared is None else linear(self.gate),
        )

    def expected(self, x: Array) -> torch.Tensor:
        wide = tensor_of(x).float()

        def mlp(matrices: tuple[Array, Array, Array], row: torch.Tensor) -> torch.Tensor:
            gate, up, down = (tensor_of(matrix).float() for matrix in matrices)
            return down @ (silu(gate @ row) * (up @ row))

        chosen, shares = reference.route(wide @ tensor_of(self.router).float().T, PER_TOKEN, self.renormalise)
        rows = []
        for token, row in enumerate(wide):
            pairs = zip(chosen[token].tolist(), shares[token], strict=True)
            total = torch.stack([share * mlp(self.mlps[expert], row) for expert, share in pairs]).sum(0)
            if self.shared is not None:
                total = total + (tensor_of(self.gate).float()[0] @ row).sigmoid() * mlp(self.shared, row)
            rows.append(total)
        return torch.stack(rows)


def computed(case: Case, x: Array) -> tuple[Floats, Ints]:
    counts: Ints = np.zeros(EXPERTS, np.int64)
    return mixture(case.packed(), x, Store.SILU_MUL, counts), counts


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_equals_the_reference(renormalise: bool, shared: bool) -> None:
    case, x = Case(renormalise=renormalise, shared=shared), 3 * random(40, HIDDEN, seed=5)
    x = x.astype(BFLOAT16)
    actual, counts = computed(case, x)
    torch.testing.assert_close(tensor_of(actual), case.expected(x), atol=2e-2, rtol=2e-2)
    assert counts.sum() == 40 * PER_TOKEN


def test_a_token_depends_on_itself_alone_to_the_bit() -> None:
    case, x = Case(renormalise=True, shared=True), random(33, HIDDEN, seed=6)
    together, _ = computed(case, x)
    for token in range(33):
        alone, _ = computed(case, x[token : token + 1])
        assert np.array_equal(alone[0], together[token])


def test_a_token_that_is_not_a_number_leaves_the_others_alone() -> None:
    case, x = Case(renormalise=False, shared=False), random(9, HIDDEN, seed=7)
    clean, _ = computed(case, x)
    x[4, 3] = np.nan
    spoilt, _ = computed(case, x)
    assert np.isnan(spoilt[4]).any()
    others = [token for token in range(9) if token != 4]
    assert np.array_equal(spoilt[others], clean[others])


RULES = {
    "softmax": RoutingRule(),
    "scaled": RoutingRule(scale=2.5),
    "groups by their best": RoutingRule(groups=4, groups_per_token=2),
    "sigmoid": RoutingRule("sigmoid", 1.5),
    "groups by their best two": RoutingRule("sigmoid", 2.5, groups=4, groups_per_token=2, group_best=2),
}


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_routing_equals_the_reference(rule: RoutingRule, biased: bool, renormalise: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn((200, 16), generator=generator)
    bias = 0.3 * torch.randn(16, generator=generator) if biased else None
    experts, shares = reference.route(logits, 4, renormalise, rule, bias)
    actual = route(array_of(logits), 4, renormalise, rule, None if bias is None else array_of(bias))
    assert np.array_equal(actual[0], array_of(experts))
    torch.testing.assert_close(tensor_of(actual[1]), shares)
