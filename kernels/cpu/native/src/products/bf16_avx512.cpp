#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

#include "products/bf16.h"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <immintrin.h>

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"

using Input = uint16_t;
constexpr int FACTORS = 1;

struct Rows {
    const Input* first;
    int64_t stride;
};

inline Rows rows_of(const Product& product, int64_t row) {
    return {product.x + row * product.x_stride, product.x_stride};
}

struct Weights {
    __m512bh low, high;
};

inline Weights load_weights(const char* at) {
    return {reinterpret_cast<__m512bh>(_mm512_loadu_si512(at)), reinterpret_cast<__m512bh>(_mm512_loadu_si512(at + 64))};
}

// Both inputs' products at once.
inline void add_factor(const Weights& weights, const Input* x, int, __m512 (&sums)[2]) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
    sums[0] = _mm512_dpbf16_ps(sums[0], weights.low, both);
    sums[1] = _mm512_dpbf16_ps(sums[1], weights.high, both);
}

#include "products/bf16_tiles.inl"

}  // namespace

void bf16_block_avx512(const Product& product, int64_t block) { all_rows(product, block); }

}  // namespace tp
#endif
