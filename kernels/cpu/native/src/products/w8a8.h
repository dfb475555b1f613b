// Weights of signed bytes times rows of signed bytes: see w8a8.cpp. How weights and rows lie.
//
// A block of 32 outputs has their scales float32 [32], then for each four inputs a byte of each [output 32][input 4]: the
// integer plus 128. A prepared row has a header, then its integers int8 [inputs].
#pragma once

#include "products/product.h"

namespace tp {

constexpr int64_t QUAD = 4;  // inputs that are multiplied and added at a time
constexpr int64_t QUAD_BYTES = QUAD * BLOCK_OUTPUTS;
constexpr int64_t W8A8_SCALES_BYTES = BLOCK_OUTPUTS * sizeof(float);
constexpr int64_t W8A8_UNIT = 32;         // inputs are a multiple of this
constexpr int64_t W8A8_MOST = 1 << 17;    // inputs: |sum| <= 2^17 x 127 x 128 < 2^31
constexpr int64_t ROW_HEADER_BYTES = 64;  // of which a RowHeader is used

struct RowHeader {
    float scale;          // NaN if a number of the row is not finite
    uint32_t correction;  // -128 times the sum of its integers, modulo 2^32
};

constexpr int64_t w8a8_block_bytes(int64_t inputs) { return W8A8_SCALES_BYTES + inputs / QUAD * QUAD_BYTES; }

// As `Format` has these, at a level.
struct W8A8Kernel {
    void (*prepare)(const TpWeight& weight, const uint16_t* x, char* prepared);
    void (*block)(const Product& product, int64_t block);
};

extern const W8A8Kernel W8A8_PORTABLE;
#if defined(__x86_64__)
extern const W8A8Kernel W8A8_AVX2;
extern const W8A8Kernel W8A8_AVX512;
#endif

}  // namespace tp
