"""The model computed by torch on the CPU: numpy arrays and torch tensors share their memory."""

import torch

from engine.models.config import ModelConfig
from engine.models.host_model import HostModel, allocate_states
from engine.models.transformer import Transformer
from kernels.arrays import Array, Floats, Ints
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
        hidden = self._transformer.forward(tensor_of(token_ids), plan, tensor_of(kv), rows, window_plans)
        return array_of(hidden if wanted is None else hidden[tensor_of(wanted)])

    @torch.inference_mode()
    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        self._transformer.settle_drafts(rows, accepted)

    @torch.inference_mode()
    def logits(self, hidden: Array) -> Floats:
        return array_of(self._transformer.logits(tensor_of(hidden)))
