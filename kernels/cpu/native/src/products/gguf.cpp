// Weights of GGUF files in blocks of 32, repacked; not a bit of theirs is lost. The blocks are those of ggml (ggml-common.h and
// ggml-quants.c state their fields): all numbers little-endian, scales d and minima m float16.
//   Q4_0    18 bytes: d, 16 bytes of two nibbles (weights 0..15 in the lower); d (q - 8)
//   Q4_1    20 bytes: d, m, nibbles alike; d q + m
//   Q5_0    22 bytes: d, 32 fifth bits, nibbles alike; d (q - 16)
//   Q5_1    24 bytes: d, m, 32 fifth bits, nibbles alike; d q + m
//   Q8_0    34 bytes: d, 32 signed bytes; d q
//   IQ4_NL  18 bytes: as Q4_0; d times the number of a table that q chooses
//   MXFP4   17 bytes: an exponent e, nibbles alike; 2^(e - 128) times twice the e2m1 number q (OCP Microscaling Formats 1.0)
#include <algorithm>

#include "products/gguf.h"

namespace tp {
namespace {

// How a block of 32 weights is stored, and where its numbers go.
struct Stored {
    int64_t bytes, high_at, nibbles_at;  // high_at: of the fifth bits; 0: there are none
    bool minima;
};

constexpr Stored Q4_0{18, 0, 2, false}, Q4_1{20, 0, 4, true}, Q5_0{22, 2, 6, false}, Q5_1{24, 4, 8, true};

constexpr int64_t scales_at(const Stored& stored) { return NIBBLES_BYTES + (stored.high_at > 0 ? ONE_BIT_BYTES : 0); }

template <const Stored& STORED, const Layout& LAYOUT>
void pack_nibbles(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    const int64_t own = output % BLOCK_OUTPUTS;
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += LAYOUT.group_bytes) {
        const uint8_t* from = stored_block(rows, inputs, output, input, GROUP_INPUTS, STORED.bytes);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            put_nibble(block, own, i, stored_nibble(from + STORED.nibbles_at, i));
            if (STORED.high_at > 0) {
                put_one_bit(block + NIBBLES_BYTES, own, i, from[STORED.high_at + i / 8] >> (i % 8) & 1);
            }
        }
        put_half(block + scales_at(STORED), own, half_of(from, 0));
        if (STORED.minima) {
            put_half(block + scales_at(STORED) + SCALES_BYTES, own, half_of(from, 1));
        }
    }
}

// `less`: what integers are stored above their value.
template <const Stored& STORED, int LESS>
float nibbles_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    uint32_t integer = nibble_of(group, output, input);
    if (STORED.high_at > 0) {
        integer |= one_bit_of(group + NIBBLES_BYTES, output, input) << 4;
    }
    const uint8_t* scales = group + scales_at(STORED);
    const float number = from_float16(half_of(scales, output)) * static_cast<float>(static_cast<int>(integer) - LESS);
    return STORED.minima ? number + from_float16(half_of(scales + SCALES_BYTES, output)) : number;
}

void pack_q8_0(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += Q8_0_LAYOUT.group_bytes) {
        const uint8_t* from = stored_block(rows, inputs, output, input, GROUP_INPUTS, 34);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            block[byte_byte(output % BLOCK_OUTPUTS, i)] = from[2 + i];
        }
        put_half(block + BYTES_BYTES, output % BLOCK_OUTPUTS, half_of(from, 0));
    }
}

float q8_0_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_float16(half_of(group + BYTES_BYTES, output)) * static_cast<int8_t>(group[byte_byte(output, input)]);
}

float iq4_nl_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_float16(half_of(group + NIBBLES_BYTES, output)) * IQ4_NUMBERS[nibble_of(group, output, input)];
}

// 2^(e - 128) is a bf16 number, for the least two exponents one without a leading bit.
uint16_t power_of(uint8_t exponent) {
    return static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

void pack_mxfp4(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += MXFP4_LAYOUT.group_bytes) {
        const uint8_t* from = stored_block(rows, inputs, output, input, GROUP_INPUTS, 17);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            put_nibble(block, output % BLOCK_OUTPUTS, i, stored_nibble(from + 1, i));
        }
        put_half(block + NIBBLES_BYTES, output % BLOCK_OUTPUTS, power_of(from[0]));
    }
}

float mxfp4_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_bf16(half_of(group + NIBBLES_BYTES, output)) * E2M1_NUMBERS[nibble_of(group, output, input)];
}

}  // namespace

const Format* gguf_format(int32_t format, int32_t level) {
    switch (format) {
        case TP_Q4_0:
            return block_format<TP_Q4_0, Q4_0_LAYOUT, each_output<pack_nibbles<Q4_0, Q4_0_LAYOUT>>, nibbles_number<Q4_0, 8>>(
                level);
        case TP_Q4_1:
            return block_format<TP_Q4_1, Q4_1_LAYOUT, each_output<pack_nibbles<Q4_1, Q4_1_LAYOUT>>, nibbles_number<Q4_1, 0>>(
                level);
        case TP_Q5_0:
            return block_format<TP_Q5_0, Q5_0_LAYOUT, each_output<pack_nibbles<Q5_0, Q5_0_LAYOUT>>, nibbles_number<Q5_0, 16>>(
                level);
        case TP_Q5_1:
            return block_format<TP_Q5_1, Q5_1_LAYOUT, each_output<pack_nibbles<Q5_1, Q5_1_LAYOUT>>, nibbles_number<Q5_1, 0>>(
                level);
        case TP_Q8_0:
            return block_format<TP_Q8_0, Q8_0_LAYOUT, each_output<pack_q8_0>, q8_0_number>(level);
        case TP_IQ4_NL:
            return block_format<TP_IQ4_NL, IQ4_NL_LAYOUT, each_output<pack_nibbles<Q4_0, Q4_0_LAYOUT>>, iq4_nl_number>(level);
        case TP_MXFP4:
            return block_format<TP_MXFP4, MXFP4_LAYOUT, each_output<pack_mxfp4>, mxfp4_number>(level);
        default:
            return gguf_super_format(format, level);
    }
}

}  // namespace tp
