// Weights in 8-bit floats (e4m3: a sign, four bits of exponent, three of mantissa; no infinities) with a float32 scale for a group
// of inputs of an output: w = scale number. Nothing of them is rounded. A stored block has 32 or 128 weights of one output:
//   scale float32, numbers in order, a byte each
#include "products/blocks_pack.h"

namespace tp {
namespace {

// 2^-120 times the number is a float32 with the same bits of exponent and mantissa, also where there is no leading one.
float from_e4m3(uint8_t code) {
    const float size = from_bits(static_cast<uint32_t>(code & 0x7f) << 20) * 0x1p120f;
    return (code & 0x80) != 0 ? -size : size;
}

template <const Layout& LAYOUT>
void pack_e4m3(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    constexpr int64_t WEIGHTS = LAYOUT.super_groups * GROUP_INPUTS, BYTES = 4 + WEIGHTS;
    const int64_t own = output % BLOCK_OUTPUTS;
    const auto* from = static_cast<const uint8_t*>(rows) + output * (inputs / WEIGHTS) * BYTES;
    for (int64_t input = 0; input < inputs; input += WEIGHTS, from += BYTES, block += LAYOUT.super_bytes(inputs)) {
        std::memcpy(block + 4 * own, from, 4);
        for (int64_t i = 0; i < WEIGHTS; ++i) {
            block[LAYOUT.header_bytes + i / GROUP_INPUTS * LAYOUT.group_bytes + byte_byte(own, i % GROUP_INPUTS)] = from[4 + i];
        }
    }
}

float e4m3_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    float scale;
    std::memcpy(&scale, super + 4 * output, sizeof scale);
    return scale * from_e4m3(group[byte_byte(output, input)]);
}

}  // namespace

const Format* float8_format(int32_t format, int32_t level) {
    if (format == TP_E4M3_32) {
        return block_format<TP_E4M3_32, E4M3_32_LAYOUT, each_output<pack_e4m3<E4M3_32_LAYOUT>>, e4m3_number>(level);
    }
    return block_format<TP_E4M3_128, E4M3_128_LAYOUT, each_output<pack_e4m3<E4M3_128_LAYOUT>>, e4m3_number>(level);
}

}  // namespace tp
