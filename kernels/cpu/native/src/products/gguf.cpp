// Weights of GGUF files, repacked from the blocks that they come in; not a bit of theirs is lost. The blocks are those of
// ggml (ggml-common.h and ggml-quants.c tell their fields): all numbers little-endian, all scales float16.
//   Q4_0  32 weights, 18 bytes: d, 16 bytes of two nibbles (weights 0..15 in the lower); d (q - 8)
//   Q4_1  32 weights, 20 bytes: d, m, nibbles alike; d q + m
//   Q8_0  32 weights, 34 bytes: d, 32 signed bytes; d q
//   Q4_K  256 weights, 144 bytes: d, dmin, eight scales and eight minima of six bits in 12 bytes, nibbles of 64 weights in 32
//         bytes (weights 0..31 in the lower); d scale q - dmin minimum
//   Q6_K  256 weights, 210 bytes: 128 bytes of lower nibbles, 64 of upper pairs of bits, 16 signed scales, d; d scale (q - 32)
#include "products/blocks_pack.h"

namespace tp {
namespace {

constexpr int64_t SUPER = 256;

const uint8_t* block_at(const void* rows, int64_t inputs, int64_t output, int64_t input, int64_t weights, int64_t bytes) {
    return static_cast<const uint8_t*>(rows) + (output * (inputs / weights) + input / weights) * bytes;
}

uint32_t block_nibble(const uint8_t* nibbles, int64_t input) { return nibbles[input % 16] >> (input / 16 * 4) & 15; }

void pack_q4_0(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += Q4_0_LAYOUT.group_bytes) {
        const uint8_t* from = block_at(rows, inputs, output, input, GROUP_INPUTS, 18);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            put_nibble(block, output % BLOCK_OUTPUTS, i, block_nibble(from + 2, i));
        }
        put_half(block + NIBBLES_BYTES, output % BLOCK_OUTPUTS, half_of(from, 0));
    }
}

void pack_q4_1(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += Q4_1_LAYOUT.group_bytes) {
        const uint8_t* from = block_at(rows, inputs, output, input, GROUP_INPUTS, 20);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            put_nibble(block, output % BLOCK_OUTPUTS, i, block_nibble(from + 4, i));
        }
        put_half(block + NIBBLES_BYTES, output % BLOCK_OUTPUTS, half_of(from, 0));
        put_half(block + NIBBLES_BYTES + SCALES_BYTES, output % BLOCK_OUTPUTS, half_of(from, 1));
    }
}

void pack_q8_0(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += Q8_0_LAYOUT.group_bytes) {
        const uint8_t* from = block_at(rows, inputs, output, input, GROUP_INPUTS, 34);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            block[byte_byte(output % BLOCK_OUTPUTS, i)] = from[2 + i];
        }
        put_half(block + BYTES_BYTES, output % BLOCK_OUTPUTS, half_of(from, 0));
    }
}

// The scale (or the minimum) of one of the eight groups, from the 12 bytes that hold them all: the first four have a byte's
// lower six bits, the others four bits of the last bytes and the two upper bits of the first.
uint8_t six_bits(const uint8_t* bytes, int64_t group, bool minimum) {
    const uint8_t* own = bytes + (minimum ? 4 : 0);
    if (group < 4) {
        return own[group] & 63;
    }
    const uint32_t lower = bytes[4 + group] >> (minimum ? 4 : 0) & 15;
    return static_cast<uint8_t>(lower | own[group - 4] >> 6 << 4);
}

void pack_q4_k(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    const int64_t own = output % BLOCK_OUTPUTS;
    for (int64_t input = 0; input < inputs; input += SUPER, block += Q4_K_LAYOUT.super_bytes(SUPER)) {
        const uint8_t* from = block_at(rows, inputs, output, input, SUPER, 144);
        put_half(block, own, half_of(from, 0));
        put_half(block + SCALES_BYTES, own, half_of(from, 1));
        for (int64_t g = 0; g < Q4_K_LAYOUT.super_groups; ++g) {
            uint8_t* group = block + Q4_K_LAYOUT.header_bytes + g * Q4_K_LAYOUT.group_bytes;
            for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
                put_nibble(group, own, i, from[16 + g / 2 * 32 + i] >> (g % 2 * 4) & 15);
            }
            group[NIBBLES_BYTES + own] = six_bits(from + 4, g, false);
            group[NIBBLES_BYTES + BLOCK_OUTPUTS + own] = six_bits(from + 4, g, true);
        }
    }
}

void pack_q6_k(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    const int64_t own = output % BLOCK_OUTPUTS;
    for (int64_t input = 0; input < inputs; input += SUPER, block += Q6_K_LAYOUT.super_bytes(SUPER)) {
        const uint8_t* from = block_at(rows, inputs, output, input, SUPER, 210);
        put_half(block, own, half_of(from + 208, 0));
        for (int64_t g = 0; g < Q6_K_LAYOUT.super_groups; ++g) {
            uint8_t* group = block + Q6_K_LAYOUT.header_bytes + g * Q6_K_LAYOUT.group_bytes;
            // Of each 128 weights: the nibbles of groups 0 and 2, and of 1 and 3, share bytes; the upper bits of all four do.
            const uint8_t* lower = from + g / 4 * 64 + g % 2 * 32;
            const uint8_t* upper = from + 128 + g / 4 * 32;
            for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
                put_nibble(group, own, i, lower[i] >> (g % 4 / 2 * 4) & 15);
                const uint32_t bits = upper[i] >> (g % 4 * 2) & 3;
                group[NIBBLES_BYTES + upper_byte(own, i)] |= static_cast<uint8_t>(bits << upper_bit(i));
            }
            uint8_t* scales = group + NIBBLES_BYTES + NIBBLES_BYTES / 2;
            scales[own] = from[192 + 2 * g];
            scales[BLOCK_OUTPUTS + own] = from[192 + 2 * g + 1];
        }
    }
}

float q4_0_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    const int value = static_cast<int>(nibble_of(group, output, input)) - 8;
    return from_float16(half_of(group + NIBBLES_BYTES, output)) * static_cast<float>(value);
}

float q4_1_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_float16(half_of(group + NIBBLES_BYTES, output)) * static_cast<float>(nibble_of(group, output, input)) +
           from_float16(half_of(group + NIBBLES_BYTES + SCALES_BYTES, output));
}

float q8_0_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_float16(half_of(group + BYTES_BYTES, output)) * static_cast<int8_t>(group[byte_byte(output, input)]);
}

float q4_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const float scale = from_float16(half_of(super, output)) * group[NIBBLES_BYTES + output];
    const float minimum = from_float16(half_of(super + SCALES_BYTES, output)) * group[NIBBLES_BYTES + BLOCK_OUTPUTS + output];
    return scale * static_cast<float>(nibble_of(group, output, input)) - minimum;
}

float q6_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const uint32_t upper = group[NIBBLES_BYTES + upper_byte(output, input)] >> upper_bit(input) & 3;
    const int value = static_cast<int>(nibble_of(group, output, input) | upper << 4) - 32;
    const uint8_t* scales = group + NIBBLES_BYTES + NIBBLES_BYTES / 2;
    const auto scale = static_cast<int8_t>(scales[input / 16 * BLOCK_OUTPUTS + output]);
    return from_float16(half_of(super, output)) * scale * static_cast<float>(value);
}

}  // namespace

const Format* gguf_format(int32_t format, int32_t level) {
    switch (format) {
        case TP_Q4_0:
            return block_format<Q4_0_LAYOUT, each_output<pack_q4_0>, q4_0_number, &BlockKernels::q4_0>(level);
        case TP_Q4_1:
            return block_format<Q4_1_LAYOUT, each_output<pack_q4_1>, q4_1_number, &BlockKernels::q4_1>(level);
        case TP_Q8_0:
            return block_format<Q8_0_LAYOUT, each_output<pack_q8_0>, q8_0_number, &BlockKernels::q8_0>(level);
        case TP_Q4_K:
            return block_format<Q4_K_LAYOUT, each_output<pack_q4_k>, q4_k_number, &BlockKernels::q4_k>(level);
        case TP_Q6_K:
            return block_format<Q6_K_LAYOUT, each_output<pack_q6_k>, q6_k_number, &BlockKernels::q6_k>(level);
        default:
            return nullptr;
    }
}

}  // namespace tp
