"""Definitions of the ops of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form: queries
are taken to the latent's dimensions, and attend to the latents as they are stored.

Letters as in `kernels.ops`; r rotated dimensions, L those of a latent, D' = r + L of a stored key, Dv of a head's
value.
"""

import torch
from torch import Tensor

from kernels.ops import AttentionMetadata, RopeRows
from kernels.reference import apply_rope, attend, rms_norm, write_kv


def by_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, Hq, K] times each head's weight [Hq, N, K] transposed: [T, Hq, N]."""
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def rotate_and_store_latents(
    query: Tensor,
    down: Tensor,
    norm: Tensor,
    eps: float,
    rope: RopeRows,
    kv_layer: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """The rotated dimensions [T, Hq, r] of query [T, Hq, D], which are its first.

    `down` [T, L + r]: the latent of each token, and what is rotated of its key. kv_layer [N, 16, 1, 1, D'] stores the
    latter, rotated, and then the latent, normed by `norm` [L]; negative slots are skipped. `rope` rotates r dimensions.
    """
    rotated = 2 * rope.cos.shape[-1]
    latent, key = down[:, :-rotated], apply_rope(down[:, None, -rotated:], rope)[:, 0]
    stored = torch.cat((key, rms_norm(latent, norm, eps)), dim=1)
    write_kv(kv_layer, stored[:, None, None], slot_mapping)
    return apply_rope(query[:, :, :rotated], rope)


def attend_latents(
    query: Tensor,
    kv_layer: Tensor,
    metadata: AttentionMetadata,
    rotated: int,
    scale: float,
) -> Tensor:
    """Causal attention of query [T, Hq, D'] over the paged latents [N, 16, 1, 1, D']: the mean latents [T, Hq, L].

    `kernels.reference.attend`, but for the scores, which are multiplied by `scale`, and the `rotated` first dimensions,
    which are no value.
    """
    # `attend` divides by the root of the dimensions.
    factor = scale * query.shape[-1] ** 0.5
    wide = attend(query.float() * factor, kv_layer, metadata, None)
    return wide[:, :, rotated:].to(query.dtype)
