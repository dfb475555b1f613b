"""The definition of each op, in plain torch. Backends equal these within the tolerance that their tests state.

Written for readability, not speed: one row at a time, no packing. Shapes use the letters of `kernels.ops`.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from kernels.layout import BLOCK_TOKENS
from kernels.noise import GOLDEN_32, MASK_32, MURMUR_A, MURMUR_B, noise_key
from kernels.ops import (
    AttentionMetadata,
    FiniteTokens,
    HeadNorms,
    LogitEdits,
    Penalties,
    RopeRows,
    SamplingColumns,
    SlotDraws,
    SlotSampling,
)
from kernels.weights import PLAIN_ROUTING, TINY_SHARE, KVScales, RoutingRule

CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_SLOPE = 7.0, 1.702


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in] times weight [out, in] transposed, plus bias [out]."""
    return functional.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension, computed in float32.

    The normalised value is rounded to x's dtype before the weight is applied, as in Hugging Face's models.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum). The sum is the next residual. `residual` may be overwritten."""
    total = residual + x
    return rms_norm(total, weight, eps), total


def apply_rope(heads: Tensor, rope: RopeRows) -> Tensor:
    """Rotate heads [T, h, D] (RoFormer, Su et al., arXiv 2104.09864) with half-split pairs: dimension i with i + D'/2.

    D' is twice the width of the factors; dimensions past D' are unchanged.
    """
    rope = rope.of_tokens()
    half = rope.cos.shape[-1]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((first * rope.cos - second * rope.sin, second * rope.cos + first * rope.sin, rest), dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of [T, 2F] times the second half (SwiGLU, Shazeer, arXiv 2002.05202)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """x times the sigmoid of the gate, both [T, N]."""
    return x * gate.sigmoid()


def gelu_mul(gate_up: Tensor) -> Tensor:
    """GELU of the first half of [T, 2F], in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415), times the second
    half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


def clamped_swiglu_mul(gate_up: Tensor) -> Tensor:
    """(up + 1) gate sigmoid(1.702 gate) of gates, the first half of [T, 2F], up to 7 and ups, the second, within +-7
    (gpt-oss model card, arXiv 2508.10925)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=CLAMPED_SWIGLU_LIMIT), up.clamp(-CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_LIMIT)
    return (up + 1) * gate * (CLAMPED_SWIGLU_SLOPE * gate).sigmoid()


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap): x, bounded by cap (Gemma 2, arXiv 2408.00118)."""
    return cap * torch.tanh(x / cap)


def route(
    logits: Tensor,
    per_token: int,
    renormalise: bool,
    rule: RoutingRule = PLAIN_ROUTING,
    choice_bias: Tensor | None = None,
    share_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The experts of each token and their weights, int64 and float32 [T, per_token], from the router's logits float32
    [T, experts]: the largest scores, divided by their sum if `renormalise`, times the rule's scale and those of
    `share_scale`, float32 [experts].

    The choice is by score plus `choice_bias`, float32 [experts], within the groups that the rule opens to the token.
    """
    sigmoid = rule.scoring == "sigmoid"
    scores = logits.sigmoid() if sigmoid else logits.softmax(dim=-1)
    ranked = scores if choice_bias is None else scores + choice_bias
    if rule.groups > 1:
        best = ranked.view(len(ranked), rule.groups, -1).topk(rule.group_best, dim=-1).values.sum(dim=-1)
        is_open = torch.zeros_like(best).scatter(1, best.topk(rule.groups_per_token, dim=-1).indices, 1)
        closed = is_open.repeat_interleave(ranked.shape[-1] // rule.groups, dim=-1) == 0
        ranked = ranked.masked_fill(closed, -math.inf)
    experts = ranked.topk(per_token, dim=-1).indices
    weights = scores.gather(-1, experts)
    if renormalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + (TINY_SHARE if sigmoid else 0))
    weights = weights * rule.scale
    return experts, weights if share_scale is None else weights * share_scale[experts]


def clear_blocks(kv: Tensor, block_ids: Tensor) -> None:
    """Zero blocks block_ids int64 [n] of kv [L, N, 16, 2, Hkv, D]."""
    kv.index_fill_(1, block_ids, 0)


def copy_blocks(kv: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks `sources` int64 [n] of kv [L, N, 16, 2, Hkv, D] to `targets`. The two sets are disjoint."""
    kv.index_copy_(1, targets, kv.index_select(1, sources))


def gather_blocks(kv: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    """Copy blocks block_ids int64 [n] of kv [L, N, 16, 2, Hkv, D] into staging [n, L, 16, 2, Hkv, D]."""
    staging.copy_(kv.index_select(1, block_ids).transpose(0, 1))


def scatter_blocks(staging: Tensor, kv: Tensor, block_ids: Tensor) -> None:
    """Copy staging [n, L, 16, 2, Hkv, D] into distinct blocks block_ids int64 [n] of kv [L, N, 16, 2, Hkv, D]."""
    kv.index_copy_(1, block_ids, staging.transpose(0, 1))


def write_kv(kv_layer: Tensor, keys_values: Tensor, slot_mapping: Tensor, scales: KVScales | None = None) -> None:
    """Store keys_values [T, 2, Hkv, D] in kv_layer [N, 16, 2, Hkv, D] at each token's slot; negative slots are skipped.
    Of keys alone, both have 1 in place of 2.

    With scales the layer is fp8 e4m3 and stores each number divided by its scale, saturated at the largest finite one.
    """
    if scales is not None:
        divisors = torch.tensor([scales.key, scales.value], device=keys_values.device)[:, None, None]
        largest = torch.finfo(kv_layer.dtype).max
        keys_values = (keys_values.float() / divisors).clamp(-largest, largest).to(kv_layer.dtype)
    stored = slot_mapping >= 0
    slots = slot_mapping[stored]
    kv_layer[slots // BLOCK_TOKENS, slots % BLOCK_TOKENS] = keys_values[stored]


def rotate_and_store(
    qkv: Tensor,
    norms: HeadNorms | None,
    rope: RopeRows,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> Tensor:
    """Norm the heads of qkv [T, Hq + 2 Hkv, D], rotate queries and keys, and store keys and values; returns the query
    [T, Hq, D].

    Heads are ordered query, key, value. Keys and values are stored in kv_layer [N, 16, 2, Hkv, D] as by `write_kv`.
    `qkv` may be overwritten.

    A layer [N, 16, 1, Hkv, D] stores keys, rotated, that are the values, too; then qkv is [T, Hq + Hkv, D], and `norms`
    has no `value`.
    """
    kinds, kv_heads = kv_layer.shape[2:4]
    if kinds == 1:
        query, keys = torch.split(qkv, [qkv.shape[1] - kv_heads, kv_heads], dim=1)
        if norms is not None:
            query, keys = rms_norm(query, norms.query, norms.eps), rms_norm(keys, norms.key, norms.eps)
        write_kv(kv_layer, apply_rope(keys, rope)[:, None], slot_mapping, scales)
        return apply_rope(query, rope)
    query, keys, values = torch.split(qkv, [qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        query, keys = rms_norm(query, norms.query, norms.eps), rms_norm(keys, norms.key, norms.eps)
        values = values if norms.value is None else rms_norm(values, norms.value, norms.eps)
    write_kv(kv_layer, torch.stack((apply_rope(keys, rope), values), dim=1), slot_mapping, scales)
    return apply_rope(query, rope)


def rotate(query: Tensor, norms: HeadNorms | None, rope: RopeRows) -> Tensor:
    """Norm heads of queries alone [T, Hq, D] by the norm of queries, and rotate them: what `rotate_and_store` returns
    for them, in a layer that attends to the keys and values of another."""
    return apply_rope(query if norms is None else rms_norm(query, norms.query, norms.eps), rope)


def attend(
    query: Tensor,
    kv_layer: Tensor,
    metadata: AttentionMetadata,
    window: int | None,
    cap: float | None = None,
    sinks: Tensor | None = None,
    scales: KVScales | None = None,
    scale: float | None = None,
) -> Tensor:
    """Causal attention of query [T, Hq, D] over the paged KV [N, 16, 2, Hkv, D] (paged attention, Kwon et al., arXiv
    2309.06180); returns [T, Hq, D].

    A token at position p attends to positions (p - window, p], or to all up to p with window None. Scores are scaled by
    `scale`, None for 1/sqrt(D), then bounded by `softcap` with `cap`; softmax in float32. `sinks`, float32 [Hq], adds a
    score to each head that has no value (Attention sinks, Xiao et al., arXiv 2309.17453, as learned in gpt-oss, arXiv
    2508.10925). `scales`: of KV in fp8 e4m3; a stored number times its scale is the key or value. Of KV [N, 16, 1, Hkv,
    D] keys are the values, too.
    """
    output = torch.empty_like(query)
    factors = (1.0, 1.0) if scales is None else (scales.key, scales.value)
    group = query.shape[1] // kv_layer.shape[3]
    first = 0
    for row, (tokens, context) in enumerate(
        zip(metadata.query_lens.tolist(), metadata.context_lens.tolist(), strict=True)
    ):
        skipped = 0 if window is None else max(0, context - tokens + 1 - window) // BLOCK_TOKENS
        begin = skipped * BLOCK_TOKENS
        blocks = metadata.block_tables[row, skipped : math.ceil(context / BLOCK_TOKENS)]
        kv = kv_layer[blocks].flatten(0, 1)[: context - begin].float()
        keys, values = (kv[:, i].repeat_interleave(group, dim=1) * factors[i] for i in (0, kv.shape[1] - 1))
        rows = slice(first, first + tokens)
        scores = torch.einsum("thd,shd->hts", query[rows].float(), keys)
        scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
        if cap is not None:
            scores = softcap(scores, cap)
        query_at = torch.arange(context - tokens, context, device=query.device)[:, None]
        key_at = torch.arange(begin, context, device=query.device)[None, :]
        hidden = key_at > query_at
        if window is not None:
            hidden |= key_at <= query_at - window
        scores = scores.masked_fill(hidden, -math.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(-1, tokens, 1)), dim=-1)
        weights = scores.softmax(dim=-1)[:, :, : context - begin]
        output[rows] = torch.einsum("hts,shd->thd", weights, values).to(query.dtype)
        first += tokens
    return output


def edit_logits(logits: Tensor, edits: LogitEdits) -> None:
    """Add the edits' values to logits float32 [R, V] in place."""
    logits.index_put_((edits.rows, edits.tokens), edits.values, accumulate=True)


def penalise(logits: Tensor, columns: SlotSampling, row_slots: Tensor) -> None:
    """Apply penalties to logits [R, V] in place, in float32, by the counts of each row's slot (int32 [R]).

    For tokens of prompt or output, a positive logit is divided by the repetition penalty and a negative one multiplied
    by it. From tokens of the output, the presence penalty is then subtracted, and the frequency penalty once for each
    occurrence.
    """
    slots = row_slots.long()
    repetition, presence, frequency = (
        column[slots] for column in (columns.repetition_penalty, columns.presence_penalty, columns.frequency_penalty)
    )
    logits.copy_(_penalised(logits.float(), columns.counts[slots], repetition, presence, frequency))


def penalise_listed(logits: Tensor, penalties: Penalties, token_columns: Tensor | None = None) -> None:
    """Apply penalties to logits float32 [R, F] in place. Column i is token i, or `token_columns`, int32 [V], maps each
    token to its column, or -1."""
    rows, vocab_size = len(logits), logits.shape[1] if token_columns is None else len(token_columns)
    counts = torch.zeros((rows, vocab_size), dtype=torch.int32)
    for row, (line, length) in enumerate(zip(penalties.lines.tolist(), penalties.lengths.tolist(), strict=True)):
        counts[row, penalties.tokens[line, :length].long()] = 2 * penalties.times[line, :length] + 1
    counts[penalties.draft_rows, penalties.draft_tokens] = 2 * penalties.draft_times
    if token_columns is not None:
        of_columns = torch.zeros(logits.shape, dtype=torch.int32)
        here = token_columns >= 0
        of_columns[:, token_columns[here].long()] = counts[:, here]
        counts = of_columns
    logits.copy_(_penalised(logits, counts, penalties.repetition, penalties.presence, penalties.frequency))


def _penalised(logits: Tensor, counts: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """Logits float32 [R, V] with penalties [R] applied. `counts` int32 [R, V]: twice the occurrences in the output,
    plus 1 for tokens of the prompt."""
    times = counts >> 1
    scaled = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    lower = torch.where(times == 0, scaled, scaled - (presence[:, None] + frequency[:, None] * times))
    return torch.where(counts == 0, logits, lower)


def mask_logits(logits: Tensor, bitmask: Tensor) -> None:
    """Set logits [R, V] to -inf in place where the token's bit of int32 [R, ceil(V / 32)], from bit 0 on, is 0."""
    tokens = torch.arange(logits.shape[1], device=logits.device)
    allowed = bitmask[:, tokens // 32] >> (tokens % 32) & 1
    logits.masked_fill_(allowed == 0, -math.inf)


def mask_rows(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """`mask_logits` of some rows of [R, V]: line i of the bitmask is that of row `rows[i]` (int64 [M])."""
    masked = logits[rows]
    mask_logits(masked, bitmask)
    logits[rows] = masked


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise float32 [R, V] from keys int64 [R, 2] (see `kernels.noise`).

    A 32-bit hash h becomes u = (h + 0.5) / 2^32 and the noise -log(-log(1 - u)), whose resolution is finest at small u,
    where the noise is largest.
    """
    return _noise_of(torch.arange(vocab_size, device=keys.device), keys)


def _noise_of(token_ids: Tensor, keys: Tensor) -> Tensor:
    mixed = token_ids[None, :] * GOLDEN_32 + keys[:, :1]
    mixed = _murmur_finalise(mixed & MASK_32)
    mixed = _murmur_finalise(mixed ^ keys[:, 1:])
    uniform = (mixed.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform)).float()


def _murmur_finalise(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser on int64 that hold 32-bit values."""
    x = x ^ (x >> 16)
    x = (x * MURMUR_A) & MASK_32
    x = x ^ (x >> 13)
    x = (x * MURMUR_B) & MASK_32
    return x ^ (x >> 16)


def threshold(scaled: Tensor, columns: SamplingColumns) -> Tensor:
    """The smallest scaled logit that each row of [R, V] keeps, float32 [R, 1].

    min-p keeps tokens with at least min_p of the largest probability (Nguyen et al., arXiv 2407.01082), and top-k the k
    largest; of those that both keep, top-p keeps the smallest set of largest ones whose renormalised probabilities
    reach p (Holtzman et al., arXiv 1904.09751). This is vLLM V1's order. Equal logits are kept or dropped together, so
    ties need no order.
    """
    ordered = scaled.sort(dim=-1, descending=True).values
    rank = torch.arange(ordered.shape[-1], device=scaled.device)[None, :]
    kept = (rank < columns.top_k[:, None]) & (ordered >= ordered[:, :1] + columns.min_p.log()[:, None])
    kept[:, 0] = True
    probabilities = ordered.masked_fill(~kept, -math.inf).double().softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    # top_p = 1 must keep all, however the sum was rounded.
    kept &= (mass_before < columns.top_p[:, None]) | (columns.top_p[:, None] >= 1)
    kept[:, 0] = True
    return ordered.masked_fill(~kept, math.inf).amin(dim=-1, keepdim=True)


def sample(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """Sample one token for each row, int64 [R], from logits float32 [R, V], restricted by the thresholds.

    The Gumbel-max trick: argmax(logits / T + Gumbel noise) is a draw from softmax(logits / T). A greedy row has no
    noise. Ties go to the lowest id.
    """
    return sample_among(logits, torch.arange(logits.shape[-1], device=logits.device), columns)


def sample_among(logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor:
    """`sample` restricted to these tokens: column i of logits float32 [R, F] is token `token_ids[i]` (int64 [F],
    ascending), with that token's noise."""
    scaled = logits * columns.inverse_temperature[:, None]
    kept = scaled >= threshold(scaled, columns)
    noise = _noise_of(token_ids, columns.keys) * columns.noise_scale[:, None]
    return token_ids[(scaled + noise).masked_fill(~kept, -math.inf).argmax(dim=-1)]


def sample_slots(
    logits: Tensor, columns: SlotSampling, row_slots: Tensor, positions: Tensor, hidden: FiniteTokens | None = None
) -> SlotDraws:
    """Sample one token for each draw from logits [D, V] by the columns of its slot.

    Draw i uses line `row_slots[i]` (int32); `positions[i]` (int64): index of the sampled token in its sequence. The
    logits are modified in place. Edits must have been added before, as penalties scale them, too. A draw is sound if
    `finite_rows` holds for the logits that it is sampled from, and `hidden` has flags for all tokens of its row.
    """
    penalise(logits, columns, row_slots)
    slots = row_slots.long()
    keys = [noise_key(*pair) for pair in zip(columns.seeds[slots].tolist(), positions.tolist(), strict=True)]
    chosen = SamplingColumns(
        inverse_temperature=columns.inverse_temperature[slots],
        noise_scale=columns.noise_scale[slots],
        top_k=columns.top_k[slots].long(),
        top_p=columns.top_p[slots],
        min_p=columns.min_p[slots],
        keys=torch.tensor(keys, dtype=torch.int64, device=logits.device).reshape(-1, 2),
    )
    ids, sound = sample(logits.float(), chosen), finite_rows(logits)
    if hidden is None:
        return SlotDraws(ids, sound, None)
    starts, flags = hidden.query_starts.tolist(), hidden.finite.bool()
    rows = range(len(ids)) if hidden.rows is None else hidden.rows.tolist()
    finite = torch.stack([flags[starts[row] : starts[row + 1]].all() for row in rows])
    return SlotDraws(ids, sound & finite, finite)


def token_logprobs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For one token (int64 [R]) of each row of [R, V]: log-sum-exp of the row and the token's log-probability, both
    float32 [R], and its rank, int64 [R], 1 for the most likely; ties get the best rank."""
    wide = logits.float()
    normalisers = wide.logsumexp(dim=-1)
    chosen = wide.gather(1, tokens[:, None])
    return normalisers, chosen[:, 0] - normalisers, (wide > chosen).sum(dim=-1) + 1


def finite_rows(logits: Tensor) -> Tensor:
    """Which rows of [R, V] have a finite maximum, bool [R]: False if there is a NaN or +inf, or only -inf."""
    return logits.amax(dim=-1).isfinite()
