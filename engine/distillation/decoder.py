"""A decoder in plain torch for training: whole sequences, no paged KV, gradients.

It computes what `engine.models.transformer` computes, from parameters with Hugging Face's names, so that a trained one
is saved unchanged. The embedding and the head are not part of it: a student shares its teacher's, frozen.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.config import ModelConfig
from engine.models.rope import rope_table
from engine.models.transformer import RopeFactors
from kernels.ops import RopeRows
from kernels.reference import apply_rope


class Decoder(nn.Module):
    """The layers of `config` and the final norm. Parameters are `model.layers.0...` and `model.norm.weight`.

    Uses the tensors of `weights` without a copy, in their dtype and on their device. `max_positions` bounds the
    sequence length.
    """

    def __init__(self, config: ModelConfig, max_positions: int, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        table = rope_table(config.rope, config.head_dim, max_positions)
        self._rope = RopeFactors(table, torch.float32, torch.device("cpu"))
        with torch.device("meta"):  # nothing is drawn that would be overwritten
            self.model = _Body(config)
        self.load_state_dict(weights, assign=True)

    def forward(self, embedded: Tensor) -> Tensor:
        """Hidden states [B, L, H], normed for the head, of embedded sequences [B, L, H] that all start at position 0.

        Attention is causal, so rows may be padded at their ends.
        """
        rows = self._rope.rows(torch.arange(embedded.shape[1]))
        rope = RopeRows(rows.cos.to(embedded), rows.sin.to(embedded))
        hidden = embedded
        for layer in self.model.layers:
            hidden = layer(hidden, rope)
        normed: Tensor = self.model.norm(hidden)
        return normed


class _Body(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config, window) for window in config.windows)
        self.norm = _Norm(config.hidden_size, config.rms_norm_eps)


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.input_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config, window)
        self.post_attention_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = _FeedForward(config)

    def forward(self, hidden: Tensor, rope: RopeRows) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rope)
        total: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return total


class _Norm(nn.Module):
    """RMS norm (Zhang and Sennrich, arXiv 1910.07467) in the dtype of its input."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self._eps)


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
        self._head_dim, self._window = head_dim, window
        self.q_proj = nn.Linear(hidden, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, hidden, bias=config.o_bias)
        if config.qk_norm:
            self.q_norm = _Norm(head_dim, config.rms_norm_eps)
            self.k_norm = _Norm(head_dim, config.rms_norm_eps)
        self._qk_norm = config.qk_norm

    def forward(self, x: Tensor, rope: RopeRows) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self._head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self._qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = apply_rope(query, rope).to(value.dtype), apply_rope(key, rope).to(value.dtype)
        output: Tensor = self.o_proj(_attend(query, key, value, self._window).flatten(2))
        return output


class _FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


def _attend(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """Causal attention [B, L, Hq, D] of heads [B, L, h, D]."""
    mask = _window_mask(query.shape[1], window, query.device)
    with torch.autocast(query.device.type, enabled=False):
        # torch's attention for CPUs is twice as fast in float32 as in bfloat16.
        dtype = torch.float32 if query.device.type == "cpu" else query.dtype
        heads = [projected.transpose(1, 2).to(dtype) for projected in (query, key, value)]
        attended = functional.scaled_dot_product_attention(
            heads[0], heads[1], heads[2], attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
    return attended.transpose(1, 2).to(query.dtype)


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """The attention mask of a sliding window, bool [L, L]; None if plain causal attention is equivalent."""
    if window is None or window >= length:
        return None
    at = torch.arange(length, device=device)
    return (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - window)
