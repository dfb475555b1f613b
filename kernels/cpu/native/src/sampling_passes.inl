// The passes of a draw; see logits.h.

template <Weight WEIGHT>
Split split_by(Scaled numbers, Interval interval, float largest, float* kept) {
    LongSum above, within, total;
    const float* const first_kept = kept;
    for (int64_t column = 0; column < numbers.count; column += LANES) {
        const Floats values = load_some(numbers.at + column, numbers.count - column) * numbers.factor;
        Floats weights;
        if (WEIGHT == Weight::MASS) {
            weights = decayed(values - largest);
        } else {
            weights = values > floats(-INFINITY) ? floats(1.0f) : Floats{};
        }
        const Ints is_above = values >= floats(interval.high);
        const Ints is_within = (values >= floats(interval.low)) & ~is_above;
        total.recent += weights;
        above.recent += is_above ? weights : Floats{};
        within.recent += is_within ? weights : Floats{};
        kept += pack_lanes(kept, values, bits_of(is_within));
        if (column % FLUSHED == 0) {
            total.flush();
            above.flush();
            within.flush();
        }
    }
    return {above.total(), within.total(), total.total(), kept - first_kept};
}

Split split(Scaled numbers, Interval interval, Weight weight, float largest, float* kept) {
    return weight == Weight::MASS ? split_by<Weight::MASS>(numbers, interval, largest, kept)
                                  : split_by<Weight::COUNT>(numbers, interval, largest, kept);
}

// The constants of kernels/noise.py.
inline Words murmur_finalise(Words words) {
    words = (words ^ words >> 16) * 0x85EBCA6Bu;
    words = (words ^ words >> 13) * 0xC2B2AE35u;
    return words ^ words >> 16;
}

inline Words token_words(const Draw& draw, int64_t column, int64_t last) {
    Words tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (draw.token_ids == nullptr) {
        return tokens + static_cast<uint32_t>(column);
    }
    for (int lane = 0; lane < LANES; ++lane) {
        tokens[lane] = static_cast<uint32_t>(draw.token_ids[column + lane < last ? column + lane : last - 1]);
    }
    return tokens;
}

inline Words noise_hash(const Draw& draw, Words tokens) {
    return murmur_finalise(murmur_finalise(tokens * 0x9E3779B1u + draw.key[0]) ^ draw.key[1]);
}

constexpr float MOST_NOISE = 22.9f;  // -log(-log1p(-2^-33)) is 22.874

// No less than the noise of these hashes, and hardly more where it is large: -log(u), which is above, with its binary
// logarithm taken from the bits of a float32 that is not above u; the mantissa stands for the logarithm of itself.
inline Floats noise_bound(Words hashes) {
    const Floats halved = __builtin_convertvector(reinterpret_cast<Ints>(hashes >> 1), Floats) + 0.25f;  // u x 2^31, or less
    const Floats bits = __builtin_convertvector(reinterpret_cast<Ints>(halved), Floats);
    constexpr float LN2 = 0.693147181f, ROUNDINGS = 1e-4f;
    return (158 * LN2 + ROUNDINGS) - bits * (LN2 / (1 << 23));
}

// Few tokens are near enough to the best one so far for their noise to be computed: the others' bounds say that they lose.
Score draw(const Draw& draw, int64_t first, int64_t last, Score best) {
    for (int64_t column = first; column < last; column += LANES) {
        const Floats values = rounded(load_some(draw.logits + column, last - column) * draw.factor);
        // A sum that is rounded is no smaller for a larger term: none is passed over that would win or tie.
        const Ints can_win = (values >= floats(draw.floor)) & (values + MOST_NOISE >= floats(best.value));
        if (bits_of(can_win) == 0) {
            continue;
        }
        const Words hashes = noise_hash(draw, token_words(draw, column, last));
        uint32_t bits = bits_of(can_win & (values + rounded(noise_bound(hashes)) >= floats(best.value)));
        for (; bits != 0; bits &= bits - 1) {
            const int lane = __builtin_ctz(bits);
            const float score = values[lane] + gumbel_noise(hashes[lane]);
            if (score > best.value || (score == best.value && column + lane < best.column)) {
                best = {score, column + lane};
            }
        }
    }
    return best;
}
