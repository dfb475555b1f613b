// Weights of signed bytes with a float32 scale for each output, for rows that are rounded to signed bytes, too (W8A8). The
// definition of a product is `rounded_linear` in kernels/reference_rounded.py. A stored row is of one output:
//   scale float32, the integers in order plus 128, a byte each
//
// Sums are of integers: exact, and the same in any order and at every level. A float32 of a sum, times the product of both
// scales, is the result.
#include "products/w8a8.h"

#include <cstring>

#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t STORED_SCALE_BYTES = 4;

struct Packing {
    const uint8_t* rows;
    int64_t outputs, inputs;
    uint8_t* packed;
};

int64_t packed_bytes(int64_t outputs, int64_t inputs) {
    if (outputs <= 0 || inputs <= 0 || inputs % W8A8_UNIT != 0 || inputs > W8A8_MOST) {
        return -1;
    }
    return (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS * w8a8_block_bytes(inputs);
}

void pack_blocks(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Packing*>(argument);
    const int64_t bytes = w8a8_block_bytes(work.inputs);
    for (int64_t block = first; block < last; ++block) {
        uint8_t* at = work.packed + block * bytes;
        std::memset(at, 0, static_cast<size_t>(bytes));
        for (int64_t own = 0; own < BLOCK_OUTPUTS && block * BLOCK_OUTPUTS + own < work.outputs; ++own) {
            const uint8_t* from = work.rows + (block * BLOCK_OUTPUTS + own) * (STORED_SCALE_BYTES + work.inputs);
            std::memcpy(at + STORED_SCALE_BYTES * own, from, STORED_SCALE_BYTES);
            uint8_t* to = at + W8A8_SCALES_BYTES + own * QUAD;
            for (int64_t input = 0; input < work.inputs; input += QUAD, to += QUAD_BYTES) {
                std::memcpy(to, from + STORED_SCALE_BYTES + input, QUAD);
            }
        }
    }
}

void pack(const void* rows, int64_t outputs, int64_t inputs, void* packed) {
    const Packing work{static_cast<const uint8_t*>(rows), outputs, inputs, static_cast<uint8_t*>(packed)};
    run(pack_blocks, &work, (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS, 1);
}

void unpack_row(const void* packed, int64_t, int64_t inputs, int64_t output, float* numbers) {
    const auto* block = static_cast<const uint8_t*>(packed) + output / BLOCK_OUTPUTS * w8a8_block_bytes(inputs);
    const int64_t own = output % BLOCK_OUTPUTS;
    float scale;
    std::memcpy(&scale, block + STORED_SCALE_BYTES * own, sizeof scale);
    for (int64_t input = 0; input < inputs; ++input) {
        const int32_t byte = block[W8A8_SCALES_BYTES + input / QUAD * QUAD_BYTES + own * QUAD + input % QUAD];
        numbers[input] = scale * static_cast<float>(byte - 128);
    }
}

int64_t prepared_bytes(int64_t inputs) { return ROW_HEADER_BYTES + inputs; }

constexpr Format format_with(const W8A8Kernel& kernel) {
    return {packed_bytes, pack, unpack_row, prepared_bytes, kernel.prepare, kernel.block};
}

}  // namespace

const Format* w8a8_format(int32_t level) {
    static const Format PORTABLE = format_with(W8A8_PORTABLE);
#if defined(__x86_64__)
    static const Format AVX2 = format_with(W8A8_AVX2), AVX512 = format_with(W8A8_AVX512);
    if (level >= TP_AVX512_BF16) {
        return &AVX512;
    }
    if (level >= TP_AVX2) {
        return &AVX2;
    }
#endif
    static_cast<void>(level);
    return &PORTABLE;
}

}  // namespace tp
