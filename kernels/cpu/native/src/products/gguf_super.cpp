// Weights of GGUF files in blocks of 256, repacked; not a bit of theirs is lost. The blocks are those of ggml, eight groups of 32
// weights each; d and dmin are float16.
//   Q2_K    84 bytes: 16 bytes of a scale (lower half) and a minimum for 16 weights, 64 of two bits, d, dmin;
//           d scale q - dmin minimum
//   Q3_K    110 bytes: 32 of third bits, 64 of two bits, 16 scales of six bits in 12, d; d (scale - 32) (q - 4)
//   Q4_K    144 bytes: d, dmin, eight scales and eight minima of six bits in 12, nibbles of 64 weights in 32 bytes (weights
//           0..31 in the lower); d scale q - dmin minimum
//   Q5_K    176 bytes: d, dmin, scales and minima alike, 32 of fifth bits, nibbles alike; likewise
//   Q6_K    210 bytes: 128 of lower nibbles, 64 of upper pairs of bits, 16 signed scales, d; d scale (q - 32)
//   IQ4_XS  136 bytes: d, 16 upper bits and 4 bytes of lower bits of eight scales, nibbles of 32 weights in 16 bytes;
//           d (scale - 32) times the number of a table that q chooses
#include "products/gguf.h"

namespace tp {
namespace {

constexpr int64_t SUPER = 256;

// Calls `pack_group(from, super, group, g)` for each group of an output's stored blocks; `pack_header(from, super)` before.
template <const Layout& LAYOUT, int64_t BYTES, void HEADER(const uint8_t*, uint8_t*, int64_t),
          void GROUP(const uint8_t*, uint8_t*, int64_t, int64_t)>
void pack_super(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    for (int64_t input = 0; input < inputs; input += SUPER, block += LAYOUT.super_bytes(SUPER)) {
        const uint8_t* from = stored_block(rows, inputs, output, input, SUPER, BYTES);
        HEADER(from, block, output % BLOCK_OUTPUTS);
        for (int64_t g = 0; g < LAYOUT.super_groups; ++g) {
            GROUP(from, block + LAYOUT.header_bytes + g * LAYOUT.group_bytes, g, output % BLOCK_OUTPUTS);
        }
    }
}

template <int64_t AT>
void scale_at(const uint8_t* from, uint8_t* super, int64_t own) {
    put_half(super, own, half_of(from + AT, 0));
}

template <int64_t AT>
void scale_and_minimum_at(const uint8_t* from, uint8_t* super, int64_t own) {
    put_half(super, own, half_of(from + AT, 0));
    put_half(super + SCALES_BYTES, own, half_of(from + AT, 1));
}

// Two bits of each weight in 32 bytes for 128.
uint32_t stored_two_bits(const uint8_t* bytes, int64_t g, int64_t i) { return bytes[g / 4 * 32 + i] >> (g % 4 * 2) & 3; }

// Nibbles of 64 weights in 32 bytes.
uint32_t stored_nibble_of(const uint8_t* nibbles, int64_t g, int64_t i) { return nibbles[g / 2 * 32 + i] >> (g % 2 * 4) & 15; }

void pack_q2_k(const uint8_t* from, uint8_t* group, int64_t g, int64_t own) {
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        put_two_bits(group, own, i, stored_two_bits(from + 16, g, i));
    }
    for (int64_t part = 0; part < 2; ++part) {
        const uint8_t both = from[2 * g + part];
        group[TWO_BITS_BYTES + part * BLOCK_OUTPUTS + own] = both & 15;
        group[TWO_BITS_BYTES + (2 + part) * BLOCK_OUTPUTS + own] = both >> 4;
    }
}

void pack_q3_k(const uint8_t* from, uint8_t* group, int64_t g, int64_t own) {
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        put_two_bits(group, own, i, stored_two_bits(from + 32, g, i));
        put_one_bit(group + TWO_BITS_BYTES, own, i, from[i] >> g & 1);
    }
    const uint8_t* scales = from + 96;
    for (int64_t part = 0; part < 2; ++part) {
        const int64_t k = 2 * g + part;
        const int lower = scales[k % 8] >> (k / 8 * 4) & 15, upper = scales[8 + k % 4] >> (k / 4 * 2) & 3;
        group[TWO_BITS_BYTES + ONE_BIT_BYTES + part * BLOCK_OUTPUTS + own] = static_cast<uint8_t>((lower | upper << 4) - 32);
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

void pack_q4_k(const uint8_t* from, uint8_t* group, int64_t g, int64_t own) {
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        put_nibble(group, own, i, stored_nibble_of(from + 16, g, i));
    }
    group[NIBBLES_BYTES + own] = six_bits(from + 4, g, false);
    group[NIBBLES_BYTES + BLOCK_OUTPUTS + own] = six_bits(from + 4, g, true);
}

void pack_q5_k(const uint8_t* from, uint8_t* group, int64_t g, int64_t own) {
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        put_nibble(group, own, i, stored_nibble_of(from + 48, g, i));
        put_one_bit(group + NIBBLES_BYTES, own, i, from[16 + i] >> g & 1);
    }
    uint8_t* scales = group + NIBBLES_BYTES + ONE_BIT_BYTES;
    scales[own] = six_bits(from + 4, g, false);
    scales[BLOCK_OUTPUTS + own] = six_bits(from + 4, g, true);
}

void pack_q6_k(const uint8_t* from, uint8_t* group, int64_t g, int64_t own) {
    // Of each 128 weights: the nibbles of groups 0 and 2, and of 1 and 3, share bytes; the upper bits of all four do.
    const uint8_t* lower = from + g / 4 * 64 + g % 2 * 32;
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        put_nibble(group, own, i, lower[i] >> (g % 4 / 2 * 4) & 15);
        put_two_bits(group + NIBBLES_BYTES, own, i, stored_two_bits(from + 128, g, i));
    }
    uint8_t* scales = group + NIBBLES_BYTES + TWO_BITS_BYTES;
    scales[own] = from[192 + 2 * g];
    scales[BLOCK_OUTPUTS + own] = from[192 + 2 * g + 1];
}

void pack_iq4_xs(const uint8_t* from, uint8_t* group, int64_t g, int64_t own) {
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        put_nibble(group, own, i, stored_nibble(from + 8 + 16 * g, i));
    }
    const int lower = from[4 + g / 2] >> (g % 2 * 4) & 15, upper = half_of(from, 1) >> (2 * g) & 3;
    group[NIBBLES_BYTES + own] = static_cast<uint8_t>((lower | upper << 4) - 32);
}

float scale_of(const uint8_t* super, int64_t output) { return from_float16(half_of(super, output)); }

float minimum_of(const uint8_t* super, int64_t output) { return from_float16(half_of(super + SCALES_BYTES, output)); }

float q2_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const uint8_t* scales = group + TWO_BITS_BYTES + input / 16 * BLOCK_OUTPUTS;
    const float scale = scale_of(super, output) * scales[output];
    const float minimum = minimum_of(super, output) * scales[2 * BLOCK_OUTPUTS + output];
    return scale * static_cast<float>(two_bits_of(group, output, input)) - minimum;
}

float q3_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const uint32_t bits = two_bits_of(group, output, input) | one_bit_of(group + TWO_BITS_BYTES, output, input) << 2;
    const uint8_t* scales = group + TWO_BITS_BYTES + ONE_BIT_BYTES;
    const auto scale = static_cast<int8_t>(scales[input / 16 * BLOCK_OUTPUTS + output]);
    return scale_of(super, output) * scale * static_cast<float>(static_cast<int>(bits) - 4);
}

float q4_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const float scale = scale_of(super, output) * group[NIBBLES_BYTES + output];
    const float minimum = minimum_of(super, output) * group[NIBBLES_BYTES + BLOCK_OUTPUTS + output];
    return scale * static_cast<float>(nibble_of(group, output, input)) - minimum;
}

float q5_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const uint32_t bits = nibble_of(group, output, input) | one_bit_of(group + NIBBLES_BYTES, output, input) << 4;
    const uint8_t* scales = group + NIBBLES_BYTES + ONE_BIT_BYTES;
    const float scale = scale_of(super, output) * scales[output];
    return scale * static_cast<float>(bits) - minimum_of(super, output) * scales[BLOCK_OUTPUTS + output];
}

float q6_k_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const uint32_t bits = nibble_of(group, output, input) | two_bits_of(group + NIBBLES_BYTES, output, input) << 4;
    const uint8_t* scales = group + NIBBLES_BYTES + TWO_BITS_BYTES;
    const auto scale = static_cast<int8_t>(scales[input / 16 * BLOCK_OUTPUTS + output]);
    return scale_of(super, output) * scale * static_cast<float>(static_cast<int>(bits) - 32);
}

float iq4_xs_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const auto scale = static_cast<int8_t>(group[NIBBLES_BYTES + output]);
    return scale_of(super, output) * scale * IQ4_NUMBERS[nibble_of(group, output, input)];
}

}  // namespace

const Format* gguf_super_format(int32_t format, int32_t level) {
    switch (format) {
        case TP_Q2_K:
            return block_format<TP_Q2_K, Q2_K_LAYOUT,
                                each_output<pack_super<Q2_K_LAYOUT, 84, scale_and_minimum_at<80>, pack_q2_k>>, q2_k_number>(level);
        case TP_Q3_K:
            return block_format<TP_Q3_K, Q3_K_LAYOUT, each_output<pack_super<Q3_K_LAYOUT, 110, scale_at<108>, pack_q3_k>>,
                                q3_k_number>(level);
        case TP_Q4_K:
            return block_format<TP_Q4_K, Q4_K_LAYOUT,
                                each_output<pack_super<Q4_K_LAYOUT, 144, scale_and_minimum_at<0>, pack_q4_k>>, q4_k_number>(level);
        case TP_Q5_K:
            return block_format<TP_Q5_K, Q5_K_LAYOUT,
                                each_output<pack_super<Q5_K_LAYOUT, 176, scale_and_minimum_at<0>, pack_q5_k>>, q5_k_number>(level);
        case TP_Q6_K:
            return block_format<TP_Q6_K, Q6_K_LAYOUT, each_output<pack_super<Q6_K_LAYOUT, 210, scale_at<208>, pack_q6_k>>,
                                q6_k_number>(level);
        case TP_IQ4_XS:
            return block_format<TP_IQ4_XS, IQ4_XS_LAYOUT, each_output<pack_super<IQ4_XS_LAYOUT, 136, scale_at<0>, pack_iq4_xs>>,
                                iq4_xs_number>(level);
        default:
            return nullptr;
    }
}

}  // namespace tp
