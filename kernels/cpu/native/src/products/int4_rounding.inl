// bf16 weights rounded to four bits: see int4.cpp. Include within a level's namespace, after vectors.h and rounding.inl.

constexpr float MOST_NIBBLE = 15.0f, MOST_BYTE = 255.0f;

struct Line {
    Floats scale, minimum;
};

// Sums over a group that a fit of a line needs.
struct Moments {
    Floats q, q_squares, products;
};

inline Floats inverse_of(Floats values) { return values > 0.0f ? 1.0f / values : floats(0.0f); }

// The integer that a line stands for a weight with.
inline Floats integer(Floats weight, Line line, Floats inverse) {
    return rounded(smaller(larger((weight - line.minimum) * inverse, floats(0.0f)), floats(MOST_NIBBLE)));
}

inline Moments moments(const Group& weights, Line line) {
    const Floats inverse = inverse_of(line.scale);
    Moments sums{};
    for (const Floats weight : weights) {
        const Floats q = integer(weight, line, inverse);
        sums.q += q;
        sums.q_squares += q * q;
        sums.products += q * weight;
    }
    return sums;
}

// The line through (q, weight) with the least squared error, its minimum not above zero; as it was where all q are the same.
inline Line fitted(Line line, const Moments& sums, Floats total) {
    constexpr float EACH = 1.0f / GROUP_INPUTS;
    const Floats spread = sums.q_squares - sums.q * sums.q * EACH;
    const Floats common = sums.products - sums.q * total * EACH;
    const Floats scale = common / spread;
    const Floats minimum = smaller((total - scale * sums.q) * EACH, floats(0.0f));
    const Ints usable = (spread > 0.0f) & (common > 0.0f) & (scale < INFINITY);
    return {usable ? scale : line.scale, usable ? minimum : line.minimum};
}

// The squared error of a line with the integers that the sums were made of, less the sum of the squared weights.
inline Floats error(Line line, const Moments& sums, Floats total) {
    const Floats own = line.scale * line.scale * sums.q_squares + 2.0f * line.scale * line.minimum * sums.q +
                       line.minimum * line.minimum * static_cast<float>(GROUP_INPUTS);
    return own - 2.0f * (line.scale * sums.products + line.minimum * total);
}

// Tries lines over all of the group's range, and over less of it: a few weights that are cut off cost less than wider steps
// for all. Each is fitted to what it gives, three times.
Line best_line(const Group& weights) {
    Floats least = {}, most = {}, total = {};
    for (const Floats weight : weights) {
        least = smaller(least, weight);
        most = larger(most, weight);
        total += weight;
    }
    Line best{(most - least) / MOST_NIBBLE, least};
    Floats least_error = floats(INFINITY);
    for (const float part : {1.0f, 0.85f}) {
        const Floats middle = (most + least) / 2.0f, reach = (most - least) * (part / 2.0f);
        Line line{reach * (2.0f / MOST_NIBBLE), smaller(middle - reach, floats(0.0f))};
        for (int fit = 0; fit < 3; ++fit) {
            const Moments sums = moments(weights, line);
            line = fitted(line, sums, total);
            const Floats found = error(line, sums, total);
            const Ints better = found < least_error;
            least_error = better ? found : least_error;
            best = {better ? line.scale : best.scale, better ? line.minimum : best.minimum};
        }
    }
    return best;
}

// A byte of each output, and what it is worth.
inline Floats put_bytes(uint8_t* at, Floats values, Floats unit) {
    const Floats whole = rounded(smaller(values * inverse_of(unit), floats(MOST_BYTE)));
    for (int lane = 0; lane < LANES; ++lane) {
        at[lane] = static_cast<uint8_t>(whole[lane]);
    }
    return whole * unit;
}

// What a byte of each output counts in, so that the largest fits; stored at `at`.
inline Floats put_units(uint8_t* at, Floats largest) {
    const Halves bits = not_below(largest / MOST_BYTE);
    std::memcpy(at, &bits, sizeof bits);
    return widen(bits);
}

// Eight inputs of each output in words of 16 bits: see blocks.h.
inline void put_nibbles(uint8_t* at, const Floats* q) {
    Words words{};
    for (int i = 0; i < 8; ++i) {
        words |= reinterpret_cast<Words>(__builtin_convertvector(q[i], Ints)) << (i % 2 * 16 + i / 2 * 4);
    }
    std::memcpy(at, &words, sizeof words);
}

// Outputs of a block, as many as there are lanes, from its `own` on; `lanes` of them are there.
void int4_outputs(const uint16_t* row, int64_t inputs, int64_t lanes, int64_t own, uint8_t* block) {
    const int64_t groups = inputs / GROUP_INPUTS;
    std::vector<float> lines(static_cast<size_t>(groups * 2 * LANES));  // a vector of Floats would not be aligned
    Group weights;
    Line largest{};
    for (int64_t g = 0; g < groups; ++g) {
        load_group(row + g * GROUP_INPUTS, inputs, lanes, weights);
        const Line line = best_line(weights);
        store_floats(&lines[static_cast<size_t>(g * 2 * LANES)], line.scale);
        store_floats(&lines[static_cast<size_t>(g * 2 * LANES + LANES)], line.minimum);
        largest = {larger(line.scale, largest.scale), larger(-line.minimum, largest.minimum)};  // 0, not -0, of zeros
    }
    const Line units{put_units(block + 2 * own, largest.scale), put_units(block + SCALES_BYTES + 2 * own, largest.minimum)};
    for (int64_t g = 0; g < groups; ++g) {
        const Line fit{load_floats(&lines[static_cast<size_t>(g * 2 * LANES)]),
                       load_floats(&lines[static_cast<size_t>(g * 2 * LANES + LANES)])};
        uint8_t* group = block + INT4_LAYOUT.header_bytes + g * INT4_LAYOUT.group_bytes;
        const Line line{put_bytes(group + NIBBLES_BYTES + own, fit.scale, units.scale),
                        -put_bytes(group + NIBBLES_BYTES + BLOCK_OUTPUTS + own, -fit.minimum, units.minimum)};
        const Floats inverse = inverse_of(line.scale);
        load_group(row + g * GROUP_INPUTS, inputs, lanes, weights);
        Group q;
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            q[i] = integer(weights[i], line, inverse);
        }
        for (int64_t i = 0; i < GROUP_INPUTS; i += 8) {
            put_nibbles(group + nibble_byte(own, i), q + i);
        }
    }
}

void int4_block(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    for (int64_t output = first; output < last; output += LANES) {
        const uint16_t* row = static_cast<const uint16_t*>(rows) + output * inputs;
        int4_outputs(row, inputs, std::min<int64_t>(LANES, last - output), output - first, block);
    }
}
