#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

#include "products/bf16.h"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <immintrin.h>

// Intel's cores without tiles begin a multiplication of bf16 pairs every two cycles, and of float32 numbers two in each: as
// float32 numbers, half the pairs in an instruction, they are multiplied at twice the rate. Weights are taken apart in
// registers, once for all rows of a tile; rows beforehand.
namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"

using Input = float;
constexpr int FACTORS = 2;

struct Rows {
    const Input* first;
    int64_t stride;
};

inline Rows rows_of(const Product& product, int64_t row) {
    const int64_t stride = product.prepared_bytes / static_cast<int64_t>(sizeof(Input));
    return {reinterpret_cast<const Input*>(product.prepared) + row * stride, stride};
}

struct Weights {
    __m512 half[2][2];  // first and second input with low and high outputs
};

inline Weights load_weights(const char* at) {
    Weights weights;
    for (int v = 0; v < 2; ++v) {
        Words bits;
        std::memcpy(&bits, at + v * sizeof bits, sizeof bits);
        weights.half[0][v] = reinterpret_cast<__m512>(bits << 16);
        weights.half[1][v] = reinterpret_cast<__m512>(bits & 0xffff0000u);
    }
    return weights;
}

inline void add_factor(const Weights& weights, const Input* x, int input, __m512 (&sums)[2]) {
    const __m512 number = _mm512_set1_ps(x[input]);
    sums[0] = _mm512_fmadd_ps(weights.half[input][0], number, sums[0]);
    sums[1] = _mm512_fmadd_ps(weights.half[input][1], number, sums[1]);
}

#include "products/bf16_tiles.inl"

}  // namespace

void bf16_block_float_avx512(const Product& product, int64_t block) { all_rows(product, block); }

// An odd number of lines of the cache, and rows of a tile do not take each other's places there.
int64_t bf16_float_row_bytes(int64_t inputs) {
    constexpr int64_t line = 64;
    return ((inputs * static_cast<int64_t>(sizeof(float)) + line - 1) / line | 1) * line;
}

void bf16_to_float_avx512(const TpWeight& weight, const uint16_t* x, char* prepared) {
    const int64_t inputs = weight.inputs;
    auto* to = reinterpret_cast<float*>(prepared);
    int64_t input = 0;
    for (; input + LANES <= inputs; input += LANES) {
        store_floats(to + input, load_bf16(x + input));
    }
    store_some_floats(to + input, load_some_bf16(x + input, inputs - input), inputs - input);
}

}  // namespace tp
#endif
