#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "products/blocks.h"
#pragma GCC target("avx2,fma")
#include <immintrin.h>

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"

// 32 words, as the two vectors that the processor has: the compiler keeps wider ones in memory.
struct Pairs {
    __m256i low, high;
};

inline Pairs operator&(Pairs words, int16_t bits) {
    const __m256i all = _mm256_set1_epi16(bits);
    return {_mm256_and_si256(words.low, all), _mm256_and_si256(words.high, all)};
}

inline Pairs operator|(Pairs a, Pairs b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }

inline Pairs operator-(Pairs words, int16_t less) {
    const __m256i all = _mm256_set1_epi16(less);
    return {_mm256_sub_epi16(words.low, all), _mm256_sub_epi16(words.high, all)};
}

inline Pairs operator<<(Pairs words, int bits) {
    return {_mm256_slli_epi16(words.low, bits), _mm256_slli_epi16(words.high, bits)};
}

inline Pairs shifted(Pairs words, int bits) {
    return {_mm256_srli_epi16(words.low, bits), _mm256_srli_epi16(words.high, bits)};
}

inline Pairs widened(const char* at) {
    const auto* half = reinterpret_cast<const __m128i*>(at);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(half)), _mm256_cvtepi8_epi16(_mm_loadu_si128(half + 1))};
}

#include "products/blocks_plain.inl"

struct Sums {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
};

inline void add_product(Sums& sums, Pairs weights, int32_t pair) {
    const __m256i both = _mm256_set1_epi32(pair);
    sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(weights.low, both));
    sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(weights.high, both));
}

inline Floats floats_of(const Sums& sums) {
    const __m256 halves[2] = {_mm256_cvtepi32_ps(sums.low), _mm256_cvtepi32_ps(sums.high)};
    Floats all;
    std::memcpy(&all, halves, sizeof all);
    return all;
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    Floats sums;
    for (int half = 0; half < 2; ++half) {
        const auto part = [half](const Floats& of) { return _mm256_loadu_ps(reinterpret_cast<const float*>(&of) + 8 * half); };
        _mm256_storeu_ps(reinterpret_cast<float*>(&sums) + 8 * half, _mm256_fmadd_ps(part(a), part(b), part(c)));
    }
    return sums;
}

constexpr int MOST_ROWS = 2;
constexpr int UNROLLED = 4;

#include "products/blocks_codings.inl"
#include "products/blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_AVX2 = KERNELS;

}  // namespace tp
#endif
