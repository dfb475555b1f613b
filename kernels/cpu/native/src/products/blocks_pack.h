// Packing and unpacking of the layouts of `blocks.h`, integer by integer.
#pragma once

#include <cstdint>
#include <cstring>

#include "products/blocks.h"

namespace tp {

// Where integers of an output (of its block) and an input (of its group) lie, relative to the start of the group.
inline int64_t nibble_byte(int64_t output, int64_t input) {
    const int64_t chunk = output / HALF_OUTPUTS * (NIBBLES_BYTES / 2) + input / 8 * 64;
    return chunk + output % HALF_OUTPUTS * 4 + input % 2 * 2 + input % 8 / 4;
}

inline int nibble_bit(int64_t input) { return input % 4 / 2 * 4; }

inline int64_t byte_byte(int64_t output, int64_t input) {
    return output / HALF_OUTPUTS * (BYTES_BYTES / 2) + input / 2 * 32 + output % HALF_OUTPUTS * 2 + input % 2;
}

// Of a plane of two bits.
inline int64_t two_bits_byte(int64_t output, int64_t input) {
    const int64_t chunk = output / HALF_OUTPUTS * (TWO_BITS_BYTES / 2) + input / 16 * 64;
    return chunk + output % HALF_OUTPUTS * 4 + input % 2 * 2 + input % 16 / 8;
}

inline int two_bits_bit(int64_t input) { return input % 8 / 2 * 2; }

// Of a plane of one bit.
inline int64_t one_bit_byte(int64_t output, int64_t input) {
    return output / HALF_OUTPUTS * (ONE_BIT_BYTES / 2) + output % HALF_OUTPUTS * 4 + input % 2 * 2 + input / 16;
}

inline int one_bit_bit(int64_t input) { return input % 16 / 2; }

inline void put_two_bits(uint8_t* plane, int64_t output, int64_t input, uint32_t value) {
    plane[two_bits_byte(output, input)] |= static_cast<uint8_t>(value << two_bits_bit(input));
}

inline uint32_t two_bits_of(const uint8_t* plane, int64_t output, int64_t input) {
    return plane[two_bits_byte(output, input)] >> two_bits_bit(input) & 3;
}

inline void put_one_bit(uint8_t* plane, int64_t output, int64_t input, uint32_t value) {
    plane[one_bit_byte(output, input)] |= static_cast<uint8_t>(value << one_bit_bit(input));
}

inline uint32_t one_bit_of(const uint8_t* plane, int64_t output, int64_t input) {
    return plane[one_bit_byte(output, input)] >> one_bit_bit(input) & 1;
}

inline void put_nibble(uint8_t* group, int64_t output, int64_t input, uint32_t value) {
    group[nibble_byte(output, input)] |= static_cast<uint8_t>(value << nibble_bit(input));
}

inline uint32_t nibble_of(const uint8_t* group, int64_t output, int64_t input) {
    return group[nibble_byte(output, input)] >> nibble_bit(input) & 15;
}

inline void put_half(uint8_t* at, int64_t output, uint16_t bits) { std::memcpy(at + 2 * output, &bits, sizeof bits); }

inline uint16_t half_of(const uint8_t* at, int64_t output) {
    uint16_t bits;
    std::memcpy(&bits, at + 2 * output, sizeof bits);
    return bits;
}

inline float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float from_bf16(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }

// The least bf16 number that is not below a positive one.
inline uint16_t not_below(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

// Of a finite number: see `float16` in blocks_plain.inl.
inline float from_float16(uint16_t bits) {
    const float size = from_bits((bits & 0x7fffu) << 13) * 0x1p112f;
    return (bits & 0x8000u) != 0 ? -size : size;
}

// Packs the weights of outputs [first, last) into their block, which is all zeros.
using PackBlock = void (*)(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block);
// The same for one of them.
using PackOutput = void (*)(const void* rows, int64_t inputs, int64_t output, uint8_t* block);

template <PackOutput PACK>
void each_output(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    for (int64_t output = first; output < last; ++output) {
        PACK(rows, inputs, output, block);
    }
}

// The weight of an output (of its block) and an input (of its group).
using Number = float (*)(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input);
// All outputs of all blocks, on all threads. Outputs that fill up a block stay zero.
void pack_outputs(const Layout& layout, PackBlock pack, const void* rows, int64_t outputs, int64_t inputs, void* packed);

template <const Layout& LAYOUT, Number NUMBER>
void unpack_row(const void* packed, int64_t, int64_t inputs, int64_t output, float* numbers) {
    const auto* super = static_cast<const uint8_t*>(packed) + output / BLOCK_OUTPUTS * LAYOUT.block_bytes(inputs);
    for (int64_t input = 0; input < inputs; super += LAYOUT.super_bytes(inputs)) {
        for (int64_t g = 0; g < LAYOUT.groups_of_super(inputs); ++g, input += GROUP_INPUTS) {
            const uint8_t* group = super + LAYOUT.header_bytes + g * LAYOUT.group_bytes;
            for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
                numbers[input + i] = NUMBER(super, group, output % BLOCK_OUTPUTS, i);
            }
        }
    }
}

// The table of a format that has such a layout.
template <TpFormat FORMAT, const Layout& LAYOUT, PackBlock PACK, Number NUMBER>
const Format* block_format(int32_t level) {
    constexpr auto AT = [](int32_t at) {
        const BlockKernel& kernel = block_kernels(at).of[FORMAT];
        return Format{[](int64_t outputs, int64_t inputs) { return LAYOUT.packed_bytes(outputs, inputs); },
                      [](const void* rows, int64_t outputs, int64_t inputs, void* packed) {
                          pack_outputs(LAYOUT, PACK, rows, outputs, inputs, packed);
                      },
                      unpack_row<LAYOUT, NUMBER>, kernel.prepared_bytes, kernel.prepare, kernel.block};
    };
    static const Format FORMATS[] = {AT(TP_PORTABLE), AT(TP_AVX2), AT(TP_AVX512_BF16), AT(TP_AVX512_FLOAT), AT(TP_AMX)};
    return &FORMATS[level];
}

}  // namespace tp
