"""A mixture of experts on the native library: only chosen experts are read, each for all of its tokens at once."""

import ctypes

import numpy as np

from kernels.arrays import FLOAT32, Array, Floats, Ints, address, aligned_bytes
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import GATED, Change, NativeLinear, widened
from kernels.weights import ExpertWeights, MlpWeights, RoutingRule


def mlp(
    weights: MlpWeights[NativeLinear],
    x: Array,
    store: abi.Store,
    gate_up: Change | None = None,
    down: Change | None = None,
) -> Floats:
    """A gated MLP: float32 [T, H] from bf16 [T, H]. `gate_up` and `down`: what adapters add to these products."""
    inner = weights.gate_up.gated(x, store, gate_up)
    return weights.down.wide(inner[:, : weights.down.in_features], down)


class NativeMixture:
    """The weighted sum of each token's experts, and the shared MLP.

    A token's result depends on that token alone, to the bit. `expert_tokens`, int64 [experts], counts the tokens that
    each has computed; it is kept and added to. `struct`: the TpMixture that describes it.
    """

    def __init__(self, weights: ExpertWeights[Floats, NativeLinear], store: abi.Store, expert_tokens: Ints) -> None:
        library = load()
        assert library is not None, "there is no native library"
        assert store in GATED, f"{store.name} does not multiply"
        experts = len(weights.experts)
        assert weights.router.out_features == experts <= len(expert_tokens), f"{experts} experts"
        self._library = library
        self._weights = weights
        self._held = [expert_tokens]
        vectors = [None if each is None else self._vector(each) for each in (weights.choice_bias, weights.share_scale)]
        self.struct = abi.Mixture(
            router=_router(weights),
            routing=routing(experts, weights.per_token, weights.renormalise, weights.rule, *vectors),
            expert=(abi.Expert * experts)(*map(_expert, weights.experts)),
            activation=store,
            expert_tokens=address(expert_tokens),
        )
        if weights.shared is not None:
            self.struct.shared = ctypes.pointer(_expert(weights.shared))
        self._struct_at = ctypes.addressof(self.struct)
        inputs = [expert.gate_up.part[0].inputs for expert in self.struct.expert[:experts]]
        self._columns = max(self.struct.router.part[0].inputs, *inputs)
        self._out_features = weights.experts[0].down.out_features

    def __call__(self, x: Array, routed: Array | None = None) -> Floats:
        """float32 [T, H] from bf16 [T, H]. `routed`: the router's input, if it is not x."""
        x = self._taken(x)
        routed = x if routed is None else self._taken(routed)
        y: Floats = np.empty((len(x), self._out_features), FLOAT32)
        scratch = aligned_bytes(self._library.tp_mixture_scratch_bytes(self._struct_at, len(x)))
        self._library.tp_mixture(
            self._struct_at,
            address(x),
            x.strides[0] // 2,
            address(routed),
            routed.strides[0] // 2,
            len(x),
            abi.Store.FLOAT32,
            address(y),
            y.shape[1],
            address(scratch),
        )
        return y

    def _taken(self, x: Array) -> Array:
        """The rows, contiguous and as wide as weights take them."""
        weights = self._weights
        assert x.dtype == weights.router.dtype, f"x is {x.dtype}"
        assert x.shape[1] == weights.router.in_features, f"x is {x.shape}"
        if x.shape[1] != self._columns:
            return widened(x, self._columns)
        return x if x.strides[1] == x.itemsize else np.ascontiguousarray(x)

    def _vector(self, numbers: Floats) -> int:
        """Address of the numbers in float32, valid for the lifetime of this object."""
        self._held.append(np.ascontiguousarray(numbers, FLOAT32))
        return address(self._held[-1])


def routing(
    experts: int,
    per_token: int,
    renormalise: bool,
    rule: RoutingRule,
    choice_bias: int | None = None,
    share_scale: int | None = None,
) -> abi.Routing:
    """The TpRouting. `choice_bias` and `share_scale`: addresses of float32 [experts]."""
    assert experts % rule.groups == 0, f"{experts} experts in {rule.groups} groups"
    open_experts = experts // rule.groups * min(rule.groups_per_token, rule.groups)
    assert 0 < per_token <= open_experts, f"{per_token} of {open_experts} experts for a token"
    return abi.Routing(
        experts=experts,
        per_token=per_token,
        sigmoid=rule.scoring == "sigmoid",
        renormalise=renormalise,
        scale=rule.scale,
        groups=rule.groups,
        groups_per_token=rule.groups_per_token,
        group_best=rule.group_best,
        choice_bias=choice_bias,
        share_scale=share_scale,
    )


def _router(weights: ExpertWeights[Floats, NativeLinear]) -> abi.Linear:
    """The router, and the gate of the shared MLP as one output more."""
    router = abi.Linear.from_buffer_copy(weights.router.struct)
    if weights.shared is not None and weights.shared_gate is not None:
        assert weights.shared_gate.out_features == 1, f"{weights.shared_gate.out_features} weights of a shared MLP"
        assert router.count < abi.MOST_PARTS, f"a router of {router.count} parts"
        router.part[router.count] = weights.shared_gate.struct.part[0]
        router.count += 1
    return router


def _expert(weights: MlpWeights[NativeLinear]) -> abi.Expert:
    return abi.Expert(weights.gate_up.struct, weights.down.struct)
