// Weights of small integers with a scale for each group of inputs, and for some formats a minimum: how they lie, how rows
// are prepared for them, and a block of their product at each level of the processor.
//
// Weights lie in blocks of 32 outputs, in each the groups of 32 inputs one after another, in each first the integers of
// outputs 0..15, then those of 16..31, then the scales of all 32. So a product reads memory in order, and what it reads at
// a time are the same pair of inputs of 16 outputs: 16 times two integers.
//   nibbles  [half 2][8 inputs 4][output 16][input of a pair 2] words of 16 bits, which hold four pairs, the first lowest
//   bytes    [half 2][pair 16][output 16][input of a pair 2]
//
// A row is prepared as 16-bit integers, each group of 32 with a scale of its own, a power of two: a bf16 number has
// eight significant bits, so all that are not more than 128 times smaller than the largest of their group are exact, and the
// others err by less than 2^-15 of it. Products of integers add up exactly in 32 bits, which makes a group's sum the same in
// any order and at any level; only the scaled sums of groups are floats, added in the order of the inputs. On Intel the
// instruction that multiplies 16-bit pairs does four times as many a second as the one that multiplies bf16 pairs.
#pragma once

#include "products/product.h"

namespace tp {

constexpr int64_t GROUP_INPUTS = 32;
constexpr int64_t HALF_OUTPUTS = 16;
constexpr int64_t NIBBLES_BYTES = BLOCK_OUTPUTS * GROUP_INPUTS / 2;  // of the integers of a group
constexpr int64_t BYTES_BYTES = BLOCK_OUTPUTS * GROUP_INPUTS;
constexpr int64_t SCALES_BYTES = BLOCK_OUTPUTS * 2;  // of two bytes each

// Groups come in super-groups, which begin with what their groups share: of most formats each group is one, of WHOLE_ROW all
// groups together are one.
constexpr int64_t WHOLE_ROW = 0;

struct Layout {
    int64_t header_bytes, group_bytes, super_groups;

    // Inputs are a multiple of this.
    constexpr int64_t unit_inputs() const { return (super_groups == WHOLE_ROW ? 1 : super_groups) * GROUP_INPUTS; }
    constexpr int64_t groups_of_super(int64_t inputs) const {
        return super_groups == WHOLE_ROW ? inputs / GROUP_INPUTS : super_groups;
    }
    constexpr int64_t super_bytes(int64_t inputs) const { return header_bytes + groups_of_super(inputs) * group_bytes; }
    constexpr int64_t block_bytes(int64_t inputs) const {
        return inputs / GROUP_INPUTS / groups_of_super(inputs) * super_bytes(inputs);
    }
    constexpr int64_t packed_bytes(int64_t outputs, int64_t inputs) const {
        if (outputs <= 0 || inputs <= 0 || inputs % unit_inputs() != 0) {
            return -1;
        }
        return (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS * block_bytes(inputs);
    }
};

// Nibbles, scales float16.
inline constexpr Layout Q4_0_LAYOUT{0, NIBBLES_BYTES + SCALES_BYTES, 1};
// Nibbles, scales float16, minima float16.
inline constexpr Layout Q4_1_LAYOUT{0, NIBBLES_BYTES + 2 * SCALES_BYTES, 1};
// Bytes, scales float16.
inline constexpr Layout Q8_0_LAYOUT{0, BYTES_BYTES + SCALES_BYTES, 1};
// Scales of scales and of minima float16; then eight times nibbles, scales and minima of one byte.
inline constexpr Layout Q4_K_LAYOUT{2 * SCALES_BYTES, NIBBLES_BYTES + 2 * BLOCK_OUTPUTS, 8};
// Scales of scales float16; then eight times the lower four bits as nibbles, the upper two bits likewise [half 2][16 inputs 2]
// [output 16][input of a pair 2] with eight pairs in a word, and scales of one byte for each 16 inputs [2][32].
inline constexpr Layout Q6_K_LAYOUT{SCALES_BYTES, NIBBLES_BYTES + NIBBLES_BYTES / 2 + 2 * BLOCK_OUTPUTS, 8};
// Bytes, scales bf16: as exact as a step of theirs needs, and without a least one that a small weight could fall below.
inline constexpr Layout INT8_LAYOUT{0, BYTES_BYTES + SCALES_BYTES, 1};
// Scales of scales and of minima bf16; then for each group nibbles, scales and minima of one byte.
inline constexpr Layout INT4_LAYOUT{2 * SCALES_BYTES, NIBBLES_BYTES + 2 * BLOCK_OUTPUTS, WHOLE_ROW};
// Scales float32 and zero points bf16 of all groups of a super-group; then for each group nibbles, or bytes.
constexpr int64_t ZERO_POINTS_AT = BLOCK_OUTPUTS * 4;
constexpr Layout zero_points_layout(int64_t group_bytes, int64_t groups) {
    return {ZERO_POINTS_AT + SCALES_BYTES, group_bytes, groups};
}
inline constexpr Layout U4_32_LAYOUT = zero_points_layout(NIBBLES_BYTES, 1);
inline constexpr Layout U4_64_LAYOUT = zero_points_layout(NIBBLES_BYTES, 2);
inline constexpr Layout U4_128_LAYOUT = zero_points_layout(NIBBLES_BYTES, 4);
inline constexpr Layout U8_32_LAYOUT = zero_points_layout(BYTES_BYTES, 1);
inline constexpr Layout U8_64_LAYOUT = zero_points_layout(BYTES_BYTES, 2);
inline constexpr Layout U8_128_LAYOUT = zero_points_layout(BYTES_BYTES, 4);

// A prepared row: int16 [inputs]; then for each group its scale, float32; then for each the sum of its numbers, float32.
constexpr int64_t prepared_row_bytes(int64_t inputs) { return inputs * 2 + inputs / GROUP_INPUTS * 8; }

struct BlockKernels {
    void (*prepare)(const uint16_t* x, int64_t inputs, char* prepared);
    void (*q4_0)(const Product&, int64_t);
    void (*q4_1)(const Product&, int64_t);
    void (*q8_0)(const Product&, int64_t);
    void (*q4_k)(const Product&, int64_t);
    void (*q6_k)(const Product&, int64_t);
    void (*int8)(const Product&, int64_t);
    void (*int4)(const Product&, int64_t);
    void (*u4_32)(const Product&, int64_t);
    void (*u4_64)(const Product&, int64_t);
    void (*u4_128)(const Product&, int64_t);
    void (*u8_32)(const Product&, int64_t);
    void (*u8_64)(const Product&, int64_t);
    void (*u8_128)(const Product&, int64_t);
};

const BlockKernels& block_kernels(int32_t level);

extern const BlockKernels BLOCKS_PORTABLE;
#if defined(__x86_64__)
extern const BlockKernels BLOCKS_AVX2;
extern const BlockKernels BLOCKS_AVX512;
#endif

}  // namespace tp
