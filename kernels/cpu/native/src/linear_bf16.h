// A block of a bf16 product, by what the processor has. See linear_bf16.cpp.
#pragma once

#include <cstdint>

namespace tp {

constexpr int BLOCK_OUTPUTS = 32;

struct Bf16Product {
    const uint16_t* packed;
    int64_t outputs, inputs;
    const uint16_t* x;
    int64_t x_stride, rows;
    const float* bias;
    uint16_t* y;
    int64_t y_stride;
};

// All rows of the outputs of one block of 32.
void bf16_block_portable(const Bf16Product& product, int64_t block);
void bf16_block_avx2(const Bf16Product& product, int64_t block);
void bf16_block_avx512(const Bf16Product& product, int64_t block);

}  // namespace tp
