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

struct Line {
    float scale, minimum;
};

// The weights of a group, and the sums that fits of a line need.
struct Group {
    Floats weights[2];
    float mean;
};

inline Floats rounded(Floats values) {
    const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
    return values + shift - shift;
}

// The integers that a line stands for the weights with.
inline void integers(const Group& group, Line line, Floats (&q)[2]) {
    const float inverse = line.scale > 0.0f ? 1.0f / line.scale : 0.0f;
    for (int half = 0; half < 2; ++half) {
        const Floats value = (group.weights[half] - line.minimum) * inverse;
        const Floats least = value > 0.0f ? value : floats(0.0f);
        q[half] = rounded(least < MOST ? least : floats(MOST));
    }
}

inline float error(const Group& group, Line line, const Floats (&q)[2]) {
    const Floats first = group.weights[0] - (q[0] * line.scale + line.minimum);
    const Floats second = group.weights[1] - (q[1] * line.scale + line.minimum);
    return sum(first * first + second * second);
}

// The line through (q, weight) with the least squared error; as it was where all q are the same.
inline Line fitted(const Group& group, Line line, const Floats (&q)[2]) {
    const float mean = sum(q[0] + q[1]) / GROUP_INPUTS;
    const Floats first = q[0] - mean, second = q[1] - mean;
    const float spread = sum(first * first + second * second);
    const float common = sum(first * (group.weights[0] - group.mean) + second * (group.weights[1] - group.mean));
    if (!(spread > 0.0f && common > 0.0f)) {
        return line;
    }
    const float scale = common / spread;
    return {scale, std::min(0.0f, group.mean - scale * mean)};
}

// Tries lines over all of the group's range, and over less of it: a few weights that are cut off cost less than wider steps
// for all. Each is fitted to what it gives, twice.
Line best_line(const Group& group) {
    const float least = std::min(0.0f, -largest(larger(-group.weights[0], -group.weights[1])));
    const float most = std::max(0.0f, largest(larger(group.weights[0], group.weights[1])));
    Line best{(most - least) / MOST, least};
    float least_error = INFINITY;
    for (const float part : {1.0f, 0.9f, 0.8f}) {
        const float middle = (most + least) / 2, reach = (most - least) * part / 2;
        Line line{2 * reach / MOST, std::min(0.0f, middle - reach)};
        for (int fit = 0; fit < 3; ++fit) {
            Floats q[2];
            integers(group, line, q);
            line = fitted(group, line, q);
            integers(group, line, q);
            const float found = error(group, line, q);
            if (found < least_error) {
                least_error = found;
                best = line;
            }
        }
    }
    return best;
}

Group group_of(const uint16_t* row) {
    Group group{{load_bf16(row), load_bf16(row + LANES)}, 0.0f};
    group.mean = sum(group.weights[0] + group.weights[1]) / GROUP_INPUTS;
    return group;
}

uint8_t byte_of(float value, float unit) {
    return unit > 0.0f ? static_cast<uint8_t>(std::min(MOST_BYTE, std::rint(value / unit))) : 0;
}

void pack_int4(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    const uint16_t* row = static_cast<const uint16_t*>(rows) + output * inputs;
    const int64_t own = output % BLOCK_OUTPUTS, groups = inputs / GROUP_INPUTS;
    std::vector<Line> lines(static_cast<size_t>(groups));
    float scale = 0.0f, minimum = 0.0f;
    for (int64_t g = 0; g < groups; ++g) {
        Line& line = lines[static_cast<size_t>(g)];
        line = best_line(group_of(row + g * GROUP_INPUTS));
        scale = std::max(scale, line.scale);
        minimum = std::max(minimum, -line.minimum);
    }
    const uint16_t scale_bits = not_below(scale / MOST_BYTE), minimum_bits = not_below(minimum / MOST_BYTE);
    put_half(block, own, scale_bits);
    put_half(block + SCALES_BYTES, own, minimum_bits);
    for (int64_t g = 0; g < groups; ++g) {
        const Line line = lines[static_cast<size_t>(g)];
        uint8_t* group = block + INT4_LAYOUT.header_bytes + g * INT4_LAYOUT.group_bytes;
        const uint8_t scale_byte = byte_of(line.scale, from_bf16(scale_bits));
        const uint8_t minimum_byte = byte_of(-line.minimum, from_bf16(minimum_bits));
        group[NIBBLES_BYTES + own] = scale_byte;
        group[NIBBLES_BYTES + BLOCK_OUTPUTS + own] = minimum_byte;
        Floats q[2];
        integers(group_of(row + g * GROUP_INPUTS), {from_bf16(scale_bits) * scale_byte, -from_bf16(minimum_bits) * minimum_byte}, q);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            put_nibble(group, own, i, static_cast<uint32_t>(q[i / LANES][i % LANES]));
        }
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
