"""The model computed by torch on the CPU: numpy arrays and torch tensors share their memory."""

import torch

from engine.models.config import ModelConfig
from engine.models.host_model import HostModel, allocate_states
from engine.models.transformer import Transformer
from kernels.adapter_sizes import check_adapter
from kernels.adapters import AdapterWeights
from kernels.arrays import Array, Floats, Ints
from kernels.cpu.adapters import TorchAdapter, TorchAdapters, pack
from kernels.cpu.torch_host import TorchHost
from kernels.exchange import array_of, tensor_of
from kernels.host import StepRows
from kernels.ops import AttentionMetadata


class TorchModel:
    """A `HostModel` over a `Transformer` whose ops are on the CPU."""

    reads_past_context = True

    def __init__(self, transformer: Transformer) -> None:
        assert transformer.ops.device.type == "cpu", f"the model is on {transformer.ops.device}"
        self.ops = TorchHost(transformer.ops)
        self._transformer = transformer
        self._adapter_slots = 0
        self._adapters: dict[int, TorchAdapter] = {}

    @property
    def config(self) -> ModelConfig:
        return self._transformer.config

    @property
    def expert_tokens(self) -> Ints:
        return array_of(self._transformer.expert_tokens)

    @torch.inference_mode()
    def allocate_kv(self, num_blocks: int) -> Array:
        return array_of(self._transformer.allocate_kv(num_blocks))

    def allocate_states(self, num_slots: int) -> Floats:
        return allocate_states(self.config, self.ops, num_slots)

    def allocate_adapters(self, slots: int) -> None:
        """Slots for adapters, all empty."""
        self._adapter_slots, self._adapters = slots, {}

    @property
    def adapter_layout(self) -> None:
        return None

    @torch.inference_mode()
    def pack_adapter(self, weights: AdapterWeights) -> TorchAdapter:
        """An adapter in this model's format. May be called by any thread.

        Raises:
            ValueError: the adapter does not fit the model.
        """
        check_adapter(weights, self._transformer.adapted_sizes)
        return pack(weights)

    def put_adapter(self, slot: int, packed: TorchAdapter | None) -> None:
        """Replace the adapter of a slot; None: empty it. Called between steps."""
        assert 0 <= slot < self._adapter_slots, f"slot {slot} of {self._adapter_slots}"
        if packed is None:
            self._adapters.pop(slot, None)
        else:
            self._adapters[slot] = packed

    @torch.inference_mode()
    def embed(self, token_ids: Ints) -> Array:
        return array_of(self._transformer.embed(tensor_of(token_ids)))

    def use_table_of(self, other: HostModel) -> None:
        assert isinstance(other, TorchModel), "the other model's table is packed for another backend"
        self._transformer.use_table_of(other._transformer)

    @torch.inference_mode()
    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        plan, *window_plans = (
            self._transformer.ops.plan_attention(
                AttentionMetadata(tensor_of(tables), rows.query_lens, rows.context_lens)
            )
            for tables in (rows.block_tables, *rows.window_tables)
        )
        adapters = None if rows.adapters is None else TorchAdapters(self._adapters, rows.adapters, rows.query_lens)
        hidden = self._transformer.forward(tensor_of(token_ids), plan, tensor_of(kv), rows, window_plans, adapters)
        return array_of(hidden if wanted is None else hidden[tensor_of(wanted)])

    @torch.inference_mode()
    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        self._transformer.settle_drafts(rows, accepted)

    @torch.inference_mode()
    def logits(self, hidden: Array) -> Floats:
        return array_of(self._transformer.logits(tensor_of(hidden)).float())
