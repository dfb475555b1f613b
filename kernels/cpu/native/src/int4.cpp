// bf16 weights rounded to four bits, in groups of 32 inputs: w = scale q + minimum, q 0..15 and the minimum not above zero.
// Scales and minima are a byte each times what all groups of an output share, so a weight takes 4.5 bits, as with ggml's
// Q4_0, whose error is a fifth larger.
#include <algorithm>
#include <cmath>
#include <vector>

#include "blocks_pack.h"

namespace tp {
namespace {

#include "vectors.h"

constexpr float MOST = 15.0f, MOST_BYTE = 255.0f;

// Of 16 outputs each.
using Group = Floats[GROUP_INPUTS];

struct Line {
    Floats scale, minimum;
};

// Sums over a group that a fit of a line needs.
struct Moments {
    Floats q, q_squares, products;
};

inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

inline Floats rounded(Floats values) {
    const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
    return values + shift - shift;
}

inline Floats inverse_of(Floats values) { return values > 0.0f ? 1.0f / values : floats(0.0f); }

// The integer that a line stands for a weight with.
inline Floats integer(Floats weight, Line line, Floats inverse) {
    return rounded(smaller(larger((weight - line.minimum) * inverse, floats(0.0f)), floats(MOST)));
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
    Line best{(most - least) / MOST, least};
    Floats least_error = floats(INFINITY);
    for (const float part : {1.0f, 0.85f}) {
        const Floats middle = (most + least) / 2.0f, reach = (most - least) * (part / 2.0f);
        Line line{reach * (2.0f / MOST), smaller(middle - reach, floats(0.0f))};
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

// Weights of `lanes` outputs from `row` on, those past them zeros.
void load_group(const uint16_t* row, int64_t inputs, int64_t lanes, Group& weights) {
    float numbers[GROUP_INPUTS][LANES] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) {
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            numbers[i][lane] = from_bf16(row[lane * inputs + i]);
        }
    }
    std::memcpy(weights, numbers, sizeof numbers);
}

// Bytes of 16 outputs, and what they are worth.
inline Floats put_bytes(uint8_t* at, Floats values, Floats unit) {
    const Floats whole = rounded(smaller(values * inverse_of(unit), floats(MOST_BYTE)));
    for (int lane = 0; lane < LANES; ++lane) {
        at[lane] = static_cast<uint8_t>(whole[lane]);
    }
    return whole * unit;
}

// What a byte of each output counts in, so that the largest fits; stored at `at`.
inline Floats put_units(uint8_t* at, Floats largest) {
    Floats units;
    for (int lane = 0; lane < LANES; ++lane) {
        const uint16_t bits = not_below(largest[lane] / MOST_BYTE);
        put_half(at, lane, bits);
        units[lane] = from_bf16(bits);
    }
    return units;
}

// The outputs of half a block.
void pack_half(const uint16_t* row, int64_t inputs, int64_t lanes, int64_t own, uint8_t* block) {
    const int64_t groups = inputs / GROUP_INPUTS;
    std::vector<Line> lines(static_cast<size_t>(groups));
    Group weights;
    Line largest{};
    for (int64_t g = 0; g < groups; ++g) {
        load_group(row + g * GROUP_INPUTS, inputs, lanes, weights);
        Line& line = lines[static_cast<size_t>(g)];
        line = best_line(weights);
        largest = {larger(largest.scale, line.scale), larger(largest.minimum, -line.minimum)};
    }
    const Line units{put_units(block + 2 * own, largest.scale), put_units(block + SCALES_BYTES + 2 * own, largest.minimum)};
    for (int64_t g = 0; g < groups; ++g) {
        const Line fit = lines[static_cast<size_t>(g)];
        uint8_t* group = block + INT4_LAYOUT.header_bytes + g * INT4_LAYOUT.group_bytes;
        const Line line{put_bytes(group + NIBBLES_BYTES + own, fit.scale, units.scale),
                        -put_bytes(group + NIBBLES_BYTES + BLOCK_OUTPUTS + own, -fit.minimum, units.minimum)};
        load_group(row + g * GROUP_INPUTS, inputs, lanes, weights);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            const Floats q = integer(weights[i], line, inverse_of(line.scale));
            for (int64_t lane = 0; lane < lanes; ++lane) {
                put_nibble(group, own + lane, i, static_cast<uint32_t>(q[lane]));
            }
        }
    }
}

void pack_int4(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    for (int64_t output = first; output < last; output += LANES) {
        const uint16_t* row = static_cast<const uint16_t*>(rows) + output * inputs;
        pack_half(row, inputs, std::min<int64_t>(LANES, last - output), output - first, block);
    }
}

float int4_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const float scale = from_bf16(half_of(super, output)) * group[NIBBLES_BYTES + output];
    const float minimum = from_bf16(half_of(super + SCALES_BYTES, output)) * group[NIBBLES_BYTES + BLOCK_OUTPUTS + output];
    return scale * static_cast<float>(nibble_of(group, output, input)) - minimum;
}

}  // namespace

const Format* int4_format(int32_t level) {
    return block_format<INT4_LAYOUT, pack_int4, int4_number, &BlockKernels::int4>(level);
}

}  // namespace tp
