// The passes of a draw; see logits.h.

template <Weight WEIGHT>
Split split_by(Scaled numbers, Interval interval, float largest, float* kept) {
    const Floats low = floats(interval.low), high = floats(interval.high);
    LongSum above, within, total;
    const float* const first_kept = kept;
    for (int64_t few = 0; few < numbers.count; few += FEW) {
        Floats few_above = {}, few_within = {}, few_in_all = {};
        for (int64_t column = few; column < few + FEW && column < numbers.count; column += LANES) {
            const Floats values = load_some(numbers.at + column, numbers.count - column) * numbers.factor;
            const Floats one = values > floats(-INFINITY) ? floats(1.0f) : Floats{};
            const Floats weights = WEIGHT == Weight::MASS ? decayed(values - largest) : one;
            const Ints is_above = values >= high;
            const Ints is_within = (values >= low) & ~is_above;
            few_in_all += weights;
            few_above += is_above ? weights : Floats{};
            few_within += is_within ? weights : Floats{};
            const uint32_t bits = bits_of(is_within);
            if (WEIGHT == Weight::MASS || bits != 0) {  // of the k largest few vectors have any: that can be foretold
                kept += pack_lanes(kept, values, bits);
            }
        }
        above.add(few_above);
        within.add(few_within);
        total.add(few_in_all);
    }
    return {above.total(), within.total(), total.total(), kept - first_kept};
}

Split split(Scaled numbers, Interval interval, Weight weight, float largest, float* kept) {
    return weight == Weight::MASS ? split_by<Weight::MASS>(numbers, interval, largest, kept)
                                  : split_by<Weight::COUNT>(numbers, interval, largest, kept);
}

// MurmurHash3's finaliser, without its last step: that leaves the upper half of the word as it is.
inline Words nearly_finalise(Words words) {
    words = (words ^ words >> 16) * 0x85EBCA6Bu;
    return (words ^ words >> 13) * 0xC2B2AE35u;
}

inline Words finalise(Words words) { return words ^ words >> 16; }

inline Words listed_tokens(const int64_t* token_ids, int64_t count) {
    Words tokens;
    for (int lane = 0; lane < LANES; ++lane) {
        tokens[lane] = static_cast<uint32_t>(token_ids[lane < count ? lane : count - 1]);
    }
    return tokens;
}

constexpr uint32_t GOLDEN = 0x9E3779B1u;  // as the others here, of kernels/noise.py
constexpr float MOST_NOISE = 22.9f;  // -log(-log1p(-2^-33)) is 22.874

// No less than the noise of these hashes, and hardly more where it is large: -log(u), which is above, with its binary
// logarithm taken from the bits of a float32 that is not above u; the mantissa stands for the logarithm of itself.
inline Floats noise_bound(Words hashes) {
    const Floats halved = __builtin_convertvector(reinterpret_cast<Ints>(hashes >> 1), Floats) + 0.25f;  // u x 2^31, or less
    const Floats bits = __builtin_convertvector(reinterpret_cast<Ints>(halved), Floats);
    constexpr float LN2 = 0.693147181f, ROUNDINGS = 1e-4f;
    return (158 * LN2 + ROUNDINGS) - bits * (LN2 / (1 << 23));
}

// The largest hash that may belong to a winner: whose noise lifts the row's largest number to the best score so far. Its lower
// half is all ones, as only upper halves are compared with it.
inline uint32_t last_hash(float largest, float best) {
    const double roundings = 0x1p-22 * (std::abs(static_cast<double>(largest)) + std::abs(static_cast<double>(best)) + 1);
    const double noise = static_cast<double>(best) - static_cast<double>(largest) - roundings;
    const double hash = -std::expm1(-std::exp(-noise)) * 0x1p32;
    return (hash < 0x1p32 - 1 ? static_cast<uint32_t>(hash) : 0xffffffffu) | 0xffffu;
}

// Few tokens are near enough to the best one so far for their noise to be computed. Of the others something that costs less
// says that they lose: their number, or half a hash, or the bound of their noise.
template <bool LISTED>
Score draw_from(const Draw& draw, int64_t first, int64_t last, Score best) {
    const Floats floor = floats(draw.floor);
    const Words first_word = Words{} + draw.key[0], second_word = Words{} + draw.key[1];
    Floats to_reach = floats(best.value);
    Words hash_limit = Words{} + last_hash(draw.largest, best.value);
    Words products = (lane_numbers() + static_cast<uint32_t>(first)) * GOLDEN + first_word;
    for (int64_t column = first; column < last; column += LANES, products += LANES * GOLDEN) {
        const Floats values = rounded(load_some(draw.logits + column, last - column) * draw.factor);
        // A sum that is rounded is no smaller for a larger term: none is passed over that would win or tie.
        const Ints in_reach = (values >= floor) & (values + MOST_NOISE >= to_reach);
        if (bits_of(in_reach) == 0) {
            continue;
        }
        const Words keyed = LISTED ? listed_tokens(draw.token_ids + column, last - column) * GOLDEN + first_word : products;
        const Words half_hashes = nearly_finalise(finalise(nearly_finalise(keyed)) ^ second_word);
        const Ints can_win = in_reach & reinterpret_cast<Ints>(half_hashes <= hash_limit);
        if (bits_of(can_win) == 0) {
            continue;
        }
        const Words hashes = finalise(half_hashes);
        uint32_t bits = bits_of(can_win & (values + rounded(noise_bound(hashes)) >= to_reach));
        for (; bits != 0; bits &= bits - 1) {
            const int lane = __builtin_ctz(bits);
            const float score = values[lane] + gumbel_noise(hashes[lane]);
            if (score > best.value || (score == best.value && column + lane < best.column)) {
                best = {score, column + lane};
                to_reach = floats(score);
                hash_limit = Words{} + last_hash(draw.largest, score);
            }
        }
    }
    return best;
}

Score draw(const Draw& draw, int64_t first, int64_t last, Score best) {
    return draw.token_ids ? draw_from<true>(draw, first, last, best) : draw_from<false>(draw, first, last, best);
}
