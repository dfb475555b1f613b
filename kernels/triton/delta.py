"""Kernels of a gated delta net (Yang et al., arXiv 2412.06464) between its projections. Oracle:
`kernels.reference_delta.advance_rows`. Letters in shapes: `kernels.delta`.

Three launches: inputs (convolution, norms, gates), the delta rule, and the gated norm of what it read. The rule goes
through the tokens of a row one by one, and the compiler fuses no product with a sum: a row has the same bits in chunks
of any size, alone and among others, and when its drafts are settled.
"""

import triton
import triton.language as tl


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _sigmoid(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)), exact where the exponential is small, too (Higham, Accuracy and Stability, section 1.14.1)."""
    e = tl.exp(-tl.abs(x))
    more = 1.0 + e
    return tl.maximum(x, 0.0) + tl.where(more == 1.0, e, tl.log(more) * e / (more - 1.0))


@triton.jit(do_not_specialize=["tokens"])
def delta_inputs_kernel(
    mixed,
    gates,
    rows,
    token_rows,
    memory,
    convolution,
    decay_rate,
    step_bias,
    output,
    gating,
    tokens,
    slot_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    L2_EPS: tl.constexpr,
    ROW: tl.constexpr,
    TOKENS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Queries, keys and values of mixed [T, C + Hv Dv] after the convolution, into output float32 [T, C], queries and
    keys normed and queries scaled; beta and decay of gates [T, 2 Hv] into gating, float32.

    Grid: (tiles of tokens, query heads, key heads and value heads). `memory`: of the layer; the first inputs of a row
    follow those kept there.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    line = rows + tl.load(token_rows + token, mask=live, other=0) * ROW
    start = tl.load(line + 1, mask=live, other=0)
    offset = token - tl.load(line + 5, mask=live, other=0)
    state = tl.load(line + 6, mask=live, other=-1)
    used = live & (state >= 0)
    head = tl.program_id(1)
    is_key = head < 2 * KEY_HEADS
    value_head = head - 2 * KEY_HEADS
    begin = tl.where(is_key, head * KEY_DIM, 2 * KEY_HEADS * KEY_DIM + value_head * VALUE_DIM)
    place = tl.arange(0, TILE)
    exists = place < tl.where(is_key, KEY_DIM, VALUE_DIM)
    channel = begin + place
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    WIDTH: tl.constexpr = CHANNELS + VALUE_HEADS * VALUE_DIM
    wide_token = token.to(tl.int64)
    inputs = mixed + wide_token[:, None] * WIDTH + channel[None, :]
    kept = memory + state.to(tl.int64)[:, None] * slot_stride + (TAPS - 1 + offset)[:, None] * CHANNELS
    kept += channel[None, :]
    total = tl.zeros([TOKENS, TILE], tl.float32)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        inside = used & (offset >= back)
        before = used & (offset < back) & (start > 0)
        new = tl.load(inputs - back * WIDTH, mask=inside[:, None] & exists[None, :], other=0.0).to(tl.float32)
        old = tl.load(kept - back * CHANNELS, mask=before[:, None] & exists[None, :], other=0.0)
        weight = tl.load(convolution + tap * CHANNELS + channel, mask=exists, other=0.0)
        total += weight[None, :] * (new + old)
    convolved = _silu(total)
    norm = tl.rsqrt(tl.sum(convolved * convolved, axis=1) + L2_EPS)
    norm = tl.where(head < KEY_HEADS, norm * KEY_DIM**-0.5, norm)
    convolved *= tl.where(is_key, norm, 1.0)[:, None]
    at = wide_token[:, None] * CHANNELS + channel[None, :]
    tl.store(output + at, convolved, mask=live[:, None] & exists[None, :])
    if head >= 2 * KEY_HEADS:
        gate = wide_token * (2 * VALUE_HEADS) + value_head
        beta = tl.load(gates + gate, mask=live, other=0.0).to(tl.float32)
        step = tl.load(gates + gate + VALUE_HEADS, mask=live, other=0.0).to(tl.float32)
        rate, bias = tl.load(decay_rate + value_head), tl.load(step_bias + value_head)
        tl.store(gating + gate, _sigmoid(beta), mask=live)
        tl.store(gating + gate + VALUE_HEADS, tl.exp(rate * _softplus(step + bias)), mask=live)


@triton.jit
def _token(
    inputs,
    gating,
    token,
    exists,
    query_at,
    key_at,
    has_key,
    value_at,
    gate_at,
    CHANNELS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
):
    """(query, key, value, beta, decay) of a token, or zeros."""
    line = inputs + token.to(tl.int64) * CHANNELS
    gate = gating + token.to(tl.int64) * (2 * VALUE_HEADS) + gate_at
    return (
        tl.load(line + query_at, mask=has_key & exists, other=0.0),
        tl.load(line + key_at, mask=has_key & exists, other=0.0),
        tl.load(line + value_at, mask=(value_at >= 0) & exists, other=0.0),
        tl.load(gate, mask=exists, other=0.0),
        tl.load(gate + VALUE_HEADS, mask=exists, other=0.0),
    )


@triton.jit
def _keep_inputs(
    mixed,
    own,
    target,
    start,
    end,
    channel,
    exists,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LINES: tl.constexpr,
):
    """Write the inputs that the convolution needs after the first `end` tokens of a row, whose inputs begin at mixed,
    to the state `target`. Older ones are in its state `own`, which may be the same."""
    line = tl.arange(0, LINES)[:, None]
    there = (line < TAPS - 1) & exists[None, :]
    offset = end - (TAPS - 1) + line
    at = line * CHANNELS + channel[None, :]
    new = tl.load(mixed + offset.to(tl.int64) * WIDTH + channel[None, :], mask=there & (offset >= 0), other=0.0)
    old = tl.load(own + at + end * CHANNELS, mask=there & (offset < 0) & (start > 0), other=0.0)
    tl.debug_barrier()  # threads read lines that others write
    tl.store(target + at, new.to(tl.float32) + old, mask=there)


@triton.jit
def delta_rule_kernel(
    inputs,
    gating,
    mixed,
    rows,
    saves,
    settled,
    memory,
    output,
    slot_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    TILED: tl.constexpr,
    ROW: tl.constexpr,
    SAVE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUES: tl.constexpr,
    KEPT: tl.constexpr,
    KEPT_LINES: tl.constexpr,
    KEPT_TILE: tl.constexpr,
):
    """The gated delta rule of `reference_delta.delta_rule` over the tokens of each row, of what `delta_inputs_kernel`
    left, into output float32 [T, Hv Dv]; and the inputs that the next tokens' convolution needs.

    Writes the states of the rows without drafts, and those to save; with `settled`, int32 [R], the states of the others
    after that many tokens, and no output. Grid: (tiles of VALUES of Dv, Hv, rows). Each program keeps KEPT channels.
    """
    index = tl.program_id(2)
    line = rows + index * ROW
    start, count, drafted = tl.load(line + 1), tl.load(line + 2), tl.load(line + 3)
    first, state = tl.load(line + 5), tl.load(line + 6)
    head, tile = tl.program_id(1), tl.program_id(0)
    value = tile * VALUES + tl.arange(0, VALUES)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    WIDTH: tl.constexpr = CHANNELS + VALUE_HEADS * VALUE_DIM
    out = output + head * VALUE_DIM + value
    keeps = drafted == 0
    runs = state >= 0
    if settled is not None:
        runs = runs & (drafted > 0)
        keeps = runs
        count = tl.load(settled + index)
    elif state < 0:
        for offset in range(0, count):
            at = (first + offset).to(tl.int64) * (VALUE_HEADS * VALUE_DIM)
            tl.store(out + at, tl.zeros([VALUES], tl.float32))
    if runs:
        key = tl.arange(0, KEY_TILE)
        has_key = key < KEY_DIM
        key_head = head % KEY_HEADS if TILED else head // (VALUE_HEADS // KEY_HEADS)
        query_at = key_head * KEY_DIM + key
        key_at = query_at + KEY_HEADS * KEY_DIM
        value_at = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + value
        own = memory + state.to(tl.int64) * slot_stride
        of_memory = (TAPS - 1) * CHANNELS + (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
        numbers = tl.load(own + of_memory, mask=has_key[:, None] & (start > 0), other=0.0)
        last = tl.load(line + 7)
        save = tl.load(line - ROW + 7, mask=index > 0, other=0)
        query, keys, values, beta, decay = _token(
            inputs, gating, first, count > 0, query_at, key_at, has_key, value_at, head, CHANNELS, VALUE_HEADS
        )
        done = 0
        # One piece up to each save, and one up to the end.
        while save <= last:
            is_save = save < last
            end = tl.load(saves + save * SAVE, mask=is_save, other=0)
            to = tl.load(saves + save * SAVE + 1, mask=is_save, other=0)
            end, to = tl.where(is_save, end, count), tl.where(is_save, to, state)
            for offset in range(done, tl.minimum(end, count)):
                token = first + offset
                next_query, next_keys, next_values, next_beta, next_decay = _token(
                    inputs,
                    gating,
                    token + 1,
                    offset + 1 < count,
                    query_at,
                    key_at,
                    has_key,
                    value_at,
                    head,
                    CHANNELS,
                    VALUE_HEADS,
                )
                numbers *= decay
                found = tl.sum(numbers * keys[:, None], axis=0)
                change = (values - found) * beta
                numbers = tl.fma(keys[:, None], change[None, :], numbers)
                if settled is None:
                    read = tl.sum(numbers * query[:, None], axis=0)
                    tl.store(out + token.to(tl.int64) * (VALUE_HEADS * VALUE_DIM), read)
                query, keys, values, beta, decay = next_query, next_keys, next_values, next_beta, next_decay
            if keeps & (end <= count):
                target = memory + to.to(tl.int64) * slot_stride
                tl.store(target + of_memory, numbers, mask=has_key[:, None])
                channel = (head * (VALUE_DIM // VALUES) + tile) * KEPT + tl.arange(0, KEPT_TILE)
                is_kept = (tl.arange(0, KEPT_TILE) < KEPT) & (channel < CHANNELS)
                inputs_of_row = mixed + first.to(tl.int64) * WIDTH
                _keep_inputs(
                    inputs_of_row, own, target, start, end, channel, is_kept, CHANNELS, WIDTH, TAPS, KEPT_LINES
                )
            done = tl.minimum(end, count)
            save += 1


@triton.jit(do_not_specialize=["lines"])
def gated_norm_kernel(
    x,
    mixed,
    weight,
    output,
    lines,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    TILE: tl.constexpr,
):
    """RMS norm of x float32 [T HEADS, DIM] times SiLU of the last HEADS DIM numbers of each token of mixed [T, WIDTH],
    into output. Grid: (tiles of lines). Oracle: `kernels.reference_delta.gated_norm`."""
    index = (tl.program_id(0) * LINES + tl.arange(0, LINES)).to(tl.int64)
    place = tl.arange(0, TILE)
    exists = (index < lines)[:, None] & (place < DIM)[None, :]
    at = index[:, None] * DIM + place[None, :]
    numbers = tl.load(x + at, mask=exists, other=0.0)
    gates = mixed + (index // HEADS * WIDTH + WIDTH - (HEADS - index % HEADS) * DIM)[:, None] + place[None, :]
    gate = tl.load(gates, mask=exists, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, axis=1, keep_dims=True) / DIM + eps)
    weights = tl.load(weight + place, mask=place < DIM, other=0.0)
    normed = numbers * scale * weights[None, :] * _silu(gate)
    tl.store(output + at, normed.to(output.dtype.element_ty), mask=exists)
