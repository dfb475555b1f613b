// bf16 numbers one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linear_bf16.h"

namespace tp {

inline float wide(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

// To the nearest, ties to even; a NaN stays one.
inline uint16_t narrow(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<uint16_t>(word >> 16 | 0x40u);
    }
    return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

inline void store_row(const Bf16Product& product, const float* sums, int64_t row, int64_t output) {
    const int64_t lanes = std::min<int64_t>(BLOCK_OUTPUTS, product.outputs - output);
    uint16_t* y = product.y + row * product.y_stride + output;
    for (int64_t lane = 0; lane < lanes; ++lane) {
        y[lane] = narrow(sums[lane] + (product.bias ? product.bias[output + lane] : 0.0f));
    }
}

}  // namespace tp
