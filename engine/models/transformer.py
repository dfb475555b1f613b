"""The model in torch: a decoder-only transformer over a paged KV cache.

Used on a GPU, and on CPUs without kernels in the native library. Differences between families are in the config and the
weights. A step is token ids and an `AttentionPlan`; requests are not known here.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from engine.models.adapted_products import LayerAdapters, adapted_sizes, multiply
from engine.models.collective import Alone, Collective
from engine.models.config import ModelConfig
from engine.models.delta_net import DeltaNet
from engine.models.device_delta import DeviceDeltaNet
from engine.models.feed_forward import FeedForward
from engine.models.kv_groups import KVGroups, mixed_blocks
from engine.models.layer_inputs import LayerEmbeddings
from engine.models.rope import RopeTable
from kernels import ops as ops_types
from kernels.adapter_sizes import LayerSizes
from kernels.arrays import Ints
from kernels.device_adapters import DeviceAdapters, StepAdapters
from kernels.device_states import DeviceStates
from kernels.exchange import tensor_of
from kernels.host import StepRows
from kernels.layout import BLOCK_TOKENS, HeadShape, block_numbers
from kernels.ops import AttentionPlan, CheckedRows, HeadNorms, LayerWeights, Linear, ModelWeights, Ops, RopeRows
from kernels.reference import softcap
from kernels.weights import LatentWeights


class RopeFactors:
    """A rope table on the model's device: in float32 on a CPU, else in the compute dtype."""

    def __init__(
        self, table: RopeTable, dtype: torch.dtype, device: torch.device, *, by_position: bool = False
    ) -> None:
        """`by_position`: the ops read the factors by position, and in the compute dtype."""
        self._dtype, self._by_position = dtype, by_position
        kept = torch.float32 if device.type == "cpu" and not by_position else dtype
        self._cos, self._sin = (tensor_of(factors).to(device, kept) for factors in (table.cos, table.sin))

    def rows(self, positions: Tensor) -> RopeRows:
        """Factors of tokens at `positions` int64 [T], gathered once a step for all layers if the ops do not."""
        if self._by_position:
            return RopeRows(self._cos, self._sin, positions)
        cos, sin = (table[positions][:, None].to(self._dtype) for table in (self._cos, self._sin))
        return RopeRows(cos, sin)


def scaled(x: Tensor, factor: float) -> Tensor:
    """x times a factor rounded to its dtype. Uploads nothing, so that a CUDA graph may hold it."""
    return x if factor == 1 else x * rounded(factor, x.dtype)


@cache
def rounded(factor: float, dtype: torch.dtype) -> float:
    """The nearest number of a dtype."""
    return float(torch.tensor(factor, dtype=dtype))


class Transformer:
    """A loaded model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        ropes: Sequence[RopeTable],
        ops: Ops,
        groups: KVGroups,
        collective: Collective | None = None,
    ) -> None:
        """`ropes`: of each layer, the same object where the factors are the same. `collective`: of a rank that has a
        part of the model, which `config` and `weights` are of; None: they are of all of it."""
        self._groups = groups
        self._collective = collective or Alone()
        self.config = config
        self.ops = ops
        self._weights = weights
        self.adapters: DeviceAdapters | None = None
        distinct = {id(table): table for table in ropes}
        self._ropes = {
            key: RopeFactors(table, ops.dtype, ops.device, by_position=ops.rotates_by_position)
            for key, table in distinct.items()
        }
        self._rope_of_layer = [id(table) for table in ropes]
        self._feed_forward = FeedForward(config, ops, self._collective)
        self._layer_inputs = LayerEmbeddings(
            config, weights.layer_inputs, ops, self._feed_forward.multiply, self._collective
        )
        attending = [index for index in range(config.num_layers) if not config.is_linear(index)]
        numbers = itertools.accumulate(map(config.has_kv, attending))
        of_own = {index: number - 1 for index, number in zip(attending, numbers, strict=True)}
        sources = config.kv_sources or range(config.num_layers)
        self._kv_numbers = {index: of_own[sources[index]] for index in attending}
        """By layer, the number of its KV among those of all layers."""
        self._blocks = mixed_blocks(config, groups)
        self._kv_starts = [] if self._blocks is None else self._blocks.starts(ops.layer_size)[0]
        eps, linear = config.rms_norm_eps, [index for index in range(config.num_layers) if config.is_linear(index)]
        nets = {index: layer.delta for index, layer in enumerate(weights.layers) if layer.delta is not None}
        self._deltas = {index: DeltaNet(net, linear.index(index), eps) for index, net in nets.items()}
        self._device_deltas = {index: DeviceDeltaNet(net, linear.index(index), eps, ops) for index, net in nets.items()}

    @property
    def expert_tokens(self) -> Tensor:
        """Tokens that each expert has computed since loading, over all layers, int64 [experts]; empty without
        experts."""
        return self._feed_forward.expert_tokens

    @property
    def kv_groups(self) -> int:
        """Groups of the layers' KV, each with block tables of its own."""
        return len(self._groups.windows)

    @property
    def adapted_sizes(self) -> list[LayerSizes]:
        """Of each layer, the products that adapters can change."""
        config = self.config
        return [
            adapted_sizes(layer, config.num_heads, None if config.is_linear(index) else config.heads_of(index))
            for index, layer in enumerate(self._weights.layers)
        ]

    def allocate_adapters(self, slots: int, max_rank: int) -> None:
        """Allocate memory for adapters of at most `max_rank` on the model's device."""
        self.adapters = self.ops.allocate_adapters(self.adapted_sizes, slots, max_rank)

    def allocate_kv(self, num_blocks: int) -> Tensor:
        """KV memory [layers, blocks, ...]: see `kernels.ops.Ops.allocate_kv` and `allocate_mixed_kv`."""
        config = self.config
        if self._blocks is not None:
            return self.ops.allocate_mixed_kv(num_blocks, self._blocks)
        return self.ops.allocate_kv(self._groups.layers, num_blocks, config.num_kv_heads, config.head_dim)

    def allocate_states(self, num_slots: int) -> Tensor:
        """The states of `num_slots` sequences on the model's device, float32 [slots, layers, words]: see
        `kernels.delta`."""
        config = self.config
        assert config.linear is not None, "a model without recurrent layers has no states"
        shape = (num_slots, config.state_layers, config.linear.shape.words)
        return torch.zeros(shape, dtype=torch.float32, device=self.ops.device)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embedding rows [T, H] of tokens int64 [T], in the compute dtype."""
        return self._collective.look_up(self._weights.embedding, token_ids)

    def use_table_of(self, other: "Transformer") -> None:
        """Replace the embedding table by that of another model with the same rows, and a tied head by the other's; both
        models tie it or neither does. Frees the memory of the replaced table."""
        theirs = other._weights
        head = theirs.head if self.config.tie_embeddings else self._weights.head
        self._weights = replace(self._weights, embedding=theirs.embedding, head=head)

    def forward(
        self,
        token_ids: Tensor,
        plan: AttentionPlan,
        kv: Tensor,
        rows: StepRows | DeviceStates | None = None,
        window_plans: Sequence[AttentionPlan] = (),
        adapters: StepAdapters | None = None,
        into: CheckedRows | None = None,
    ) -> Tensor:
        """Hidden states [T, H] of a step's tokens, normed for the head; of a rank before the last stage, the residual
        stream after its layers. Writes their KV into `kv`, where slots past a row's context, in its last block, must
        hold finite numbers.

        `plan`: made by `ops.plan_attention` from the step's metadata. `rows`: with the states of a model that has some,
        on the host or on its device. `window_plans`: of a model whose KV is in groups, of the groups after the first.
        `adapters`: of the step's tokens; None: no token has one.
        `into`: memory for the result, which is checked there.
        """
        config, layers, plans = self.config, self._weights.layers, (plan, *window_plans)
        ropes = {key: factors.rows(plan.positions) for key, factors in self._ropes.items()}
        residual = scaled(self.embed(token_ids), config.embedding_scale)
        inputs = None
        if self._weights.layer_inputs is not None:
            residual = self._collective.embedded(residual)
            inputs = self._layer_inputs(token_ids, residual)
        residual = self._collective.enter(residual)
        norm, final_norm = layers[0].attention_norm, self._weights.final_norm if self._collective.is_last else None
        normed = residual if norm is None else self.ops.rms_norm(residual, norm, config.rms_norm_eps)
        for index, layer in enumerate(layers):
            adapted = None if adapters is None else LayerAdapters(adapters, index)
            if index in self._deltas:
                attended = self._recurrence(index, layer, normed, rows, adapted)
            else:
                rope, group = ropes[self._rope_of_layer[index]], self._groups.places[self._kv_numbers[index]][0]
                attended = self._attention(index, layer, normed, rope, kv, plans[group], adapted)
            normed, residual = self._add(attended, layer.attention_output_norm, residual, layer.mlp_norm)
            expanded = self._feed_forward(layer, normed, residual, plan, adapted)
            last = index + 1 == len(layers)
            next_norm = final_norm if last else layers[index + 1].attention_norm
            kept = into if last else None
            if layer.layer_input is None or inputs is None:
                normed, residual = self._add(expanded, layer.mlp_output_norm, residual, next_norm, layer.scalar, kept)
                continue
            _, residual = self._add(expanded, layer.mlp_output_norm, residual, None)
            added = self._layer_inputs.added(layer.layer_input, residual, inputs[:, index])
            normed, residual = self._add(added, layer.layer_input.norm, residual, next_norm, layer.scalar, kept)
        self._collective.leave(residual)
        return normed

    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        """Advance the states of the rows with drafts of the last step by the accepted ones: `accepted`, int64, one for
        each such row."""
        assert rows.states is not None, "the rows have no states"
        for delta in self._deltas.values():
            delta.settle(rows.query_lens.tolist(), rows.context_lens - rows.query_lens, rows.states, accepted)

    def settle_on_device(self, states: DeviceStates, settled: Tensor) -> None:
        """`settle_drafts` by the first `settled` tokens of the rows, int32 [R] on the device. `release_drafts` follows,
        unless a CUDA graph holds the step."""
        for delta in self._device_deltas.values():
            delta.settle(states, settled)

    def release_drafts(self) -> None:
        """Release what the last step kept to settle drafts on the device."""
        for delta in self._device_deltas.values():
            delta.release()

    def _recurrence(
        self,
        index: int,
        layer: LayerWeights,
        normed: Tensor,
        rows: StepRows | DeviceStates | None,
        adapted: LayerAdapters | None,
    ) -> Tensor:
        assert rows is not None, "a model with recurrent layers needs its rows"
        assert not isinstance(layer.qkv, LatentWeights), "a gated delta net has no latents"
        mixed = layer.qkv(normed)
        if isinstance(rows, DeviceStates):
            attended = self._device_deltas[index](normed, mixed, rows)
        else:
            assert rows.states is not None, "the rows have no states"
            starts = rows.context_lens - rows.query_lens
            attended = self._deltas[index](normed, mixed, rows.query_lens.tolist(), starts, rows.states)
        return self._collective.sum(multiply(layer.output, attended, "output", adapted))

    def _add(
        self,
        branch: Tensor,
        output_norm: Tensor | None,
        residual: Tensor,
        next_norm: Tensor | None,
        scalar: float = 1.0,
        into: CheckedRows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add a branch's output to the residual stream, and multiply this by `scalar`: (input of the next branch,
        residual stream)."""
        ops, eps, scale = self.ops, self.config.rms_norm_eps, self.config.residual_scale
        if scale != 1:
            branch = scaled(branch if output_norm is None else ops.rms_norm(branch, output_norm, eps), scale)
            output_norm = None
        return ops.add_branch(branch, output_norm, residual, next_norm, eps, rounded(scalar, residual.dtype), into)

    @property
    def logits_dtype(self) -> torch.dtype:
        """The dtype of `logits` from the model's own head."""
        return self._weights.head.logits_dtype if self._has_plain_logits else torch.float32

    @property
    def _has_plain_logits(self) -> bool:
        """Whether logits are the head's product."""
        return self.config.logit_divisor == 1 and self.config.logit_softcap is None

    def logits(self, hidden: Tensor, head: Linear | None = None, into: Tensor | None = None) -> Tensor:
        """[T, V] from hidden states [T, H]: float32, or the compute dtype where that holds them exactly. `head`: some
        rows of the model's own, for their logits only. `into`: the memory of the result, in `logits_dtype`."""
        config = self.config
        head = self._weights.head if head is None else head
        if self._has_plain_logits:
            return head.logits(hidden, into)
        logits = head.wide(hidden)
        if config.logit_divisor != 1:
            logits = logits / config.logit_divisor
        if config.logit_softcap is not None:
            logits = softcap(logits, config.logit_softcap)
        return logits if into is None else into.copy_(logits)

    def _kv_of(self, index: int, heads: HeadShape, kv: Tensor) -> Tensor:
        """The KV [N, 16, 2, Hkv, D] of a layer, or [N, 16, 1, Hkv, D] of keys alone."""
        number = self._kv_numbers[index]
        place, start = (self._groups.places[number][1], 0) if self._blocks is None else (0, self._kv_starts[number])
        pool = kv[place]
        if pool.dim() > 2:
            return pool
        return pool[:, start : start + block_numbers(heads)].view(
            -1, BLOCK_TOKENS, heads.kinds, heads.kv_heads, heads.dim
        )

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        normed: Tensor,
        rope: RopeRows,
        kv: Tensor,
        plan: AttentionPlan,
        adapted: LayerAdapters | None,
    ) -> Tensor:
        config = self.config
        heads = config.heads_of(index)
        kv_layer = self._kv_of(index, heads, kv)
        if isinstance(layer.qkv, LatentWeights):
            attended = self._attend_latents(layer.qkv, normed, rope, kv_layer, plan)
        else:
            own_kv = kv_layer if config.has_kv(index) else None
            query = self._query(layer, normed, rope, own_kv, plan, heads, adapted)
            attended = self._attend(layer, query, kv_layer, plan, config.windows[index])
        if layer.attention_gate is not None:
            attended = self.ops.sigmoid_mul(attended, layer.attention_gate(normed))
        return self._collective.sum(multiply(layer.output, attended, "output", adapted))

    def _query(
        self,
        layer: LayerWeights,
        normed: Tensor,
        rope: RopeRows,
        kv_layer: Tensor | None,
        plan: AttentionPlan,
        shape: HeadShape,
        adapted: LayerAdapters | None,
    ) -> Tensor:
        """The queries [T, Hq, D]. Writes keys and values into `kv_layer`, of a layer that has some."""
        config, ops = self.config, self.ops
        assert not isinstance(layer.qkv, LatentWeights), "latents make no keys and values"
        qkv = multiply(layer.qkv, normed, "qkv", adapted)
        if kv_layer is None:
            return ops.rotate(qkv.view(-1, config.num_heads, shape.dim), layer.head_norms, rope)
        if not shape.has_values:
            qkv = torch.cat((qkv, qkv[:, -shape.kv_heads * shape.dim :]), dim=1)
        norms = layer.head_norms
        if norms is not None and norms.whole:
            qkv, norms = self._norm_projections(qkv, norms), None
        heads = qkv.view(-1, config.num_heads + 2 * shape.kv_heads, shape.dim)
        return ops.rotate_and_store(heads, norms, rope, kv_layer, plan.slot_mapping, layer.kv_scales)

    def _attend(
        self, layer: LayerWeights, query: Tensor, kv_layer: Tensor, plan: AttentionPlan, window: int | None
    ) -> Tensor:
        """[T, Hq D]."""
        cap, scale = self.config.attention_softcap, self.config.score_scale
        return self.ops.attend(query, kv_layer, plan, window, cap, layer.sinks, layer.kv_scales, scale).flatten(1)

    def _attend_latents(
        self, weights: ops_types.LatentWeights, normed: Tensor, rope: RopeRows, kv_layer: Tensor, plan: AttentionPlan
    ) -> Tensor:
        """[T, Hq Dv]. Writes a key into `kv_layer`, which all heads share."""
        ops, scale = self.ops, self.config.score_scale
        assert scale is not None, "latent attention states its scale"
        down_query = normed
        if weights.query_down is not None and weights.query_norm is not None:
            down_query = ops.rms_norm(weights.query_down(normed), weights.query_norm, weights.eps)
        query = weights.query_up(down_query).view(-1, self.config.num_heads, self.config.head_dim)
        query = ops.latent_queries(weights, query, weights.down(normed), rope, kv_layer, plan.slot_mapping)
        return ops.latent_values(weights, ops.attend_latents(query, kv_layer, plan, weights.rotated, scale))

    def _norm_projections(self, qkv: Tensor, norms: HeadNorms) -> Tensor:
        """qkv [T, (Hq + 2 Hkv) D] with all queries, and all keys, normed at once."""
        config = self.config
        keys = config.num_kv_heads * config.head_dim
        query, key, value = torch.split(qkv, [config.num_heads * config.head_dim, keys, keys], dim=1)
        query, key = (
            self._collective.rms_norm(self.ops, part.contiguous(), weight, norms.eps)
            for part, weight in ((query, norms.query), (key, norms.key))
        )
        return torch.cat((query, key, value), dim=1)
