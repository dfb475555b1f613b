// Weights of small integers with a scale for each group of inputs, and for some formats a minimum: how they lie, how rows
// are prepared for them, and a block of their product at each level of the processor.
//
// Weights lie in blocks of 32 outputs, in each the groups of 32 inputs one after another, in each first the integers of
// outputs 0..15, then those of 16..31, then the scales of all 32. So a product reads memory in order, and what it reads at
// a time are the same pair of inputs of 16 outputs: 16 times two integers.
//   nibbles  [half 2][8 inputs 4][output 16][input of a pair 2] words of 16 bits, which hold four pairs, the first lowest
//   bytes    [half 2][pair 16][output 16][input of a pair 2]
//   two bits [half 2][16 inputs 2][output 16][input of a pair 2] words, which hold eight pairs
//   one bit  [half 2][output 16][input of a pair 2] words, which hold sixteen pairs
// What is not of 4 or 8 bits is made of these: five bits are nibbles and one bit above them.
//
// Rows are taken in one of two forms. Which one depends on the level and the format, never on how many rows there are.
//   int16  (blocks_int16.inl) Each group of 32 has a scale of its own, a power of two: a bf16 number has eight significant
//          bits, so all that are not more than 128 times smaller than the largest of their group are exact, and the others
//          err by less than 2^-15 of it. Products of integers add up exactly in 32 bits, which makes a group's sum the same
//          in any order and at any level; only the scaled sums of groups are floats, added in the order of the inputs. On
//          Intel the instruction that multiplies 16-bit pairs does four times as many a second as that for bf16 pairs.
//   bf16   (blocks_bf16.inl) Rows as they are. Integers of up to eight bits, and 8-bit floats, are bf16 numbers; a group's sum
//          is a float32, which overflows where the sum divided by the weights' scale would. Where both instructions are as
//          fast, a sum costs less that needs no conversion and no scale of a row.
#pragma once

#include "products/product.h"

namespace tp {

constexpr int64_t GROUP_INPUTS = 32;
constexpr int64_t HALF_OUTPUTS = 16;
constexpr int64_t NIBBLES_BYTES = BLOCK_OUTPUTS * GROUP_INPUTS / 2;  // of the integers of a group
constexpr int64_t BYTES_BYTES = BLOCK_OUTPUTS * GROUP_INPUTS;
constexpr int64_t ONE_BIT_BYTES = BLOCK_OUTPUTS * GROUP_INPUTS / 8;
constexpr int64_t TWO_BITS_BYTES = 2 * ONE_BIT_BYTES;
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

// Nibbles, scales of two bytes: float16, or of MXFP4 bf16.
inline constexpr Layout Q4_0_LAYOUT{0, NIBBLES_BYTES + SCALES_BYTES, 1};
inline constexpr Layout IQ4_NL_LAYOUT = Q4_0_LAYOUT;
inline constexpr Layout MXFP4_LAYOUT = Q4_0_LAYOUT;
// Nibbles, scales float16, minima float16.
inline constexpr Layout Q4_1_LAYOUT{0, NIBBLES_BYTES + 2 * SCALES_BYTES, 1};
// The same with the fifth bits after the nibbles.
inline constexpr Layout Q5_0_LAYOUT{0, NIBBLES_BYTES + ONE_BIT_BYTES + SCALES_BYTES, 1};
inline constexpr Layout Q5_1_LAYOUT{0, NIBBLES_BYTES + ONE_BIT_BYTES + 2 * SCALES_BYTES, 1};
// Bytes, scales float16.
inline constexpr Layout Q8_0_LAYOUT{0, BYTES_BYTES + SCALES_BYTES, 1};
// Scales of scales and of minima float16; then eight times nibbles, scales and minima of one byte.
inline constexpr Layout Q4_K_LAYOUT{2 * SCALES_BYTES, NIBBLES_BYTES + 2 * BLOCK_OUTPUTS, 8};
// The same with the fifth bits after the nibbles.
inline constexpr Layout Q5_K_LAYOUT{2 * SCALES_BYTES, NIBBLES_BYTES + ONE_BIT_BYTES + 2 * BLOCK_OUTPUTS, 8};
// Scales of scales and of minima float16; then eight times two bits, and scales and minima of one byte for each 16 inputs
// [2][32].
inline constexpr Layout Q2_K_LAYOUT{2 * SCALES_BYTES, TWO_BITS_BYTES + 4 * BLOCK_OUTPUTS, 8};
// Scales of scales float16; then eight times the lower two bits, the third ones, and signed scales of one byte for each 16
// inputs [2][32].
inline constexpr Layout Q3_K_LAYOUT{SCALES_BYTES, TWO_BITS_BYTES + ONE_BIT_BYTES + 2 * BLOCK_OUTPUTS, 8};
// Scales of scales float16; then eight times the lower four bits as nibbles, the upper two bits, and signed scales likewise.
inline constexpr Layout Q6_K_LAYOUT{SCALES_BYTES, NIBBLES_BYTES + TWO_BITS_BYTES + 2 * BLOCK_OUTPUTS, 8};
// Scales of scales float16; then eight times nibbles and signed scales of one byte.
inline constexpr Layout IQ4_XS_LAYOUT{SCALES_BYTES, NIBBLES_BYTES + BLOCK_OUTPUTS, 8};
// Bytes, scales bf16: as exact as a step of theirs needs, and without a least one that a small weight could fall below.
inline constexpr Layout INT8_LAYOUT{0, BYTES_BYTES + SCALES_BYTES, 1};
// Scales of scales and of minima bf16; then for each group nibbles, scales and minima of one byte.
inline constexpr Layout INT4_LAYOUT{2 * SCALES_BYTES, NIBBLES_BYTES + 2 * BLOCK_OUTPUTS, WHOLE_ROW};
// Scales float32 and zero points int16 of all groups of a super-group; then for each group nibbles, or bytes.
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
// Scales float32 of all groups of a super-group; then for each group bytes, which are e4m3 numbers.
inline constexpr Layout E4M3_32_LAYOUT{BLOCK_OUTPUTS * 4, BYTES_BYTES, 1};
inline constexpr Layout E4M3_128_LAYOUT{BLOCK_OUTPUTS * 4, BYTES_BYTES, 4};

// The numbers that nibbles of IQ4_NL and IQ4_XS choose from.
inline constexpr int16_t IQ4_NUMBERS[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the numbers of e2m1.
inline constexpr int16_t E2M1_NUMBERS[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The product of one format at a level, and how it takes rows: as `Format` has these.
struct BlockKernel {
    int64_t (*prepared_bytes)(int64_t inputs);
    void (*prepare)(const TpWeight& weight, const uint16_t* x, char* prepared);
    void (*block)(const Product& product, int64_t block);
};

// By TpFormat.
struct BlockKernels {
    BlockKernel of[TP_FORMATS];
};

const BlockKernels& block_kernels(int32_t level);

extern const BlockKernels BLOCKS_PORTABLE;
#if defined(__x86_64__)
extern const BlockKernels BLOCKS_AVX2;
extern const BlockKernels BLOCKS_AVX512;       // int16 rows
extern const BlockKernels BLOCKS_BF16_AVX512;  // bf16 rows
#endif

}  // namespace tp
