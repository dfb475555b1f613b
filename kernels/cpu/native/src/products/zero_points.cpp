// Weights of unsigned integers with a scale and a zero point for a group of inputs, as GPTQ, AWQ and compressed-tensors have
// them: w = scale (q - zero point). Nothing of them is rounded. A stored block has 32, 64 or 128 weights of one output:
//   scale float32, zero point of one byte, integers in order: of 4 bits two in a byte, the first in the lower half; of 8 bits
//   one in a byte
#include "products/blocks_pack.h"

namespace tp {
namespace {

constexpr int64_t STORED_HEADER_BYTES = 5;

// What bytes are stored less, so that they have a sign.
constexpr int32_t offset_of(int bits) { return bits == 8 ? 128 : 0; }

// A group's integers of an output, two at a time: as `byte_byte` has them.
void put_bytes(uint8_t* group, int64_t output, const uint8_t* integers) {
    for (int64_t i = 0; i < GROUP_INPUTS; i += 2) {
        uint16_t pair;
        std::memcpy(&pair, integers + i, sizeof pair);
        pair ^= 0x8080u;  // less 128
        std::memcpy(group + byte_byte(output, i), &pair, sizeof pair);
    }
}

// The same of eight nibbles at a time, as `nibble_byte` and `nibble_bit` have them: those of even inputs come to the lower half
// of a word of 32 bits.
void put_nibbles(uint8_t* group, int64_t output, const uint8_t* integers) {
    constexpr uint32_t NIBBLES = 0x0f0f0f0fu, BYTES = 0x00ff00ffu;
    for (int64_t i = 0; i < GROUP_INPUTS; i += 8) {
        uint32_t word;
        std::memcpy(&word, integers + i / 2, sizeof word);
        uint32_t even = word & NIBBLES, odd = word >> 4 & NIBBLES;
        even = (even | even >> 4) & BYTES;
        odd = (odd | odd >> 4) & BYTES;
        const uint32_t packed = ((even | even >> 8) & 0xffffu) | (odd | odd >> 8) << 16;
        std::memcpy(group + nibble_byte(output, i), &packed, sizeof packed);
    }
}

// Group by group, of all outputs: what they write to stays in the first cache meanwhile.
template <int BITS, const Layout& LAYOUT>
void pack_zero_points(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    constexpr int64_t WEIGHTS = LAYOUT.super_groups * GROUP_INPUTS, BYTES = STORED_HEADER_BYTES + WEIGHTS * BITS / 8;
    const int64_t blocks = inputs / WEIGHTS;
    const auto* stored = static_cast<const uint8_t*>(rows) + first * blocks * BYTES;
    for (int64_t b = 0; b < blocks; ++b, block += LAYOUT.super_bytes(inputs)) {
        for (int64_t output = 0; output < last - first; ++output) {
            const uint8_t* from = stored + (output * blocks + b) * BYTES;
            std::memcpy(block + 4 * output, from, 4);
            put_half(block + ZERO_POINTS_AT, output, static_cast<uint16_t>(from[4] - offset_of(BITS)));
            const uint8_t* integers = from + STORED_HEADER_BYTES;
            for (int64_t g = 0; g < LAYOUT.super_groups; ++g, integers += GROUP_INPUTS * BITS / 8) {
                uint8_t* group = block + LAYOUT.header_bytes + g * LAYOUT.group_bytes;
                if (BITS == 8) {
                    put_bytes(group, output, integers);
                } else {
                    put_nibbles(group, output, integers);
                }
            }
        }
    }
}

template <int BITS>
float zero_points_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    float scale;
    std::memcpy(&scale, super + 4 * output, sizeof scale);
    const auto integer = BITS == 8 ? static_cast<int8_t>(group[byte_byte(output, input)])
                                   : static_cast<int32_t>(nibble_of(group, output, input));
    return scale * static_cast<float>(integer - static_cast<int16_t>(half_of(super + ZERO_POINTS_AT, output)));
}

template <TpFormat FORMAT, int BITS, const Layout& LAYOUT>
const Format* format_at(int32_t level) {
    return block_format<FORMAT, LAYOUT, pack_zero_points<BITS, LAYOUT>, zero_points_number<BITS>>(level);
}

}  // namespace

const Format* zero_points_format(int32_t format, int32_t level) {
    switch (format) {
        case TP_U4_32:
            return format_at<TP_U4_32, 4, U4_32_LAYOUT>(level);
        case TP_U4_64:
            return format_at<TP_U4_64, 4, U4_64_LAYOUT>(level);
        case TP_U4_128:
            return format_at<TP_U4_128, 4, U4_128_LAYOUT>(level);
        case TP_U8_32:
            return format_at<TP_U8_32, 8, U8_32_LAYOUT>(level);
        case TP_U8_64:
            return format_at<TP_U8_64, 8, U8_64_LAYOUT>(level);
        case TP_U8_128:
            return format_at<TP_U8_128, 8, U8_128_LAYOUT>(level);
        default:
            return nullptr;
    }
}

}  // namespace tp
