"""The embeddings of tokens for each layer, on the native library. Definition: `kernels.weights.LayerInputs`."""

import math
from collections.abc import Callable

import numpy as np

from kernels.arrays import BFLOAT16, FLOAT32, Array, Floats, Ints
from kernels.cpu.native.forward import NativeWeights
from kernels.cpu.native.linear import NativeLinear
from kernels.weights import LayerInput

_GELU_SLOPE: np.float32 = np.float32(math.sqrt(2 / math.pi))

Norm = Callable[[Floats, Floats], Array]
"""The RMS norm bf16 [T, H] of float32 [T, H], with a weight [H]."""


class NativeLayerInputs:
    """Computes the layers' embeddings of a step's tokens, and what a layer adds by its own. Gates have GELU, the only
    activation that `ModelConfig` allows with these."""

    def __init__(self, weights: NativeWeights) -> None:
        self._weights, self._layers = weights.layer_inputs, len(weights.layers)

    def __call__(self, token_ids: Ints, embedded: Floats, norm: Norm) -> Floats | None:
        """float32 [T, layers, P] of tokens int64 [T], of which `embedded` [T, H] are the scaled embeddings; None for a
        model without."""
        weights = self._weights
        if weights is None:
            return None
        size = len(weights.norm)
        projected = weights.projection.wide(embedded.astype(BFLOAT16)) * np.float32(embedded.shape[1] ** -0.5)
        of_projection = norm(projected.reshape(-1, size), weights.norm).astype(FLOAT32)
        of_table = weights.table.table.rows(token_ids) * np.float32(np.array(size**0.5).astype(BFLOAT16))
        summed = of_projection.reshape(-1, self._layers, size) + of_table.reshape(-1, self._layers, size)
        inputs: Floats = summed * np.float32(2**-0.5)
        return inputs

    def added(self, weights: LayerInput[Floats, NativeLinear], residual: Floats, inputs: Floats) -> Floats:
        """The branch float32 [T, H] before its norm: of the residual stream [T, H] and the layer's `inputs` [T, P]."""
        gate = _gelu_tanh(weights.gate.wide(residual.astype(BFLOAT16)))
        return weights.projection.wide((gate * inputs).astype(BFLOAT16))


def _gelu_tanh(x: Floats) -> Floats:
    inner = _GELU_SLOPE * (x + np.float32(0.044715) * x * x * x)
    bent: Floats = np.tanh(inner)
    activated: Floats = np.float32(0.5) * x * (np.float32(1) + bent)
    return activated
