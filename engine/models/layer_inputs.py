"""The embeddings of tokens for each layer, in torch: see `kernels.weights.LayerInputs`."""

import math
from collections.abc import Callable

from torch import Tensor, cat

from engine.models.collective import Collective
from engine.models.config import ModelConfig
from kernels.ops import LayerInput, LayerInputs, Ops


class LayerEmbeddings:
    """Computes the layers' embeddings of a step's tokens, and what a layer adds by its own. `multiply`: the gated
    activation of [T, 2P]."""

    def __init__(
        self,
        config: ModelConfig,
        weights: LayerInputs | None,
        ops: Ops,
        multiply: Callable[[Tensor], Tensor],
        collective: Collective,
    ) -> None:
        self._config, self._weights, self._ops, self._multiply = config, weights, ops, multiply
        self._collective = collective

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor | None:
        """[T, layers, P] of tokens int64 [T], of which `embedded` [T, H] are the scaled embeddings; None for a model
        without."""
        weights, config = self._weights, self._config
        if weights is None:
            return None
        shape = (-1, config.num_layers, config.layer_input_size)
        projected = (weights.projection(embedded) * config.hidden_size**-0.5).view(shape)
        of_table = self._collective.look_up_layers(weights.table, token_ids).view(shape) * math.sqrt(
            config.layer_input_size
        )
        return self._ops.add_branch(projected, weights.norm, of_table, None, config.rms_norm_eps, 2**-0.5)[1]

    def added(self, weights: LayerInput, residual: Tensor, inputs: Tensor) -> Tensor:
        """The branch [T, H] before its norm, from the residual stream [T, H] and the layer's `inputs` [T, P]."""
        return weights.projection(self._multiply(cat((weights.gate(residual), inputs), dim=1)))
