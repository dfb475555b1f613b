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

inline Pairs operator+(Pairs words, int16_t more) {
    const __m256i all = _mm256_set1_epi16(more);
    return {_mm256_add_epi16(words.low, all), _mm256_add_epi16(words.high, all)};
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

// Of 16 numbers of a byte: the shuffle chooses bytes, of which the upper one of each word becomes the sign of the lower.
template <typename Table>
inline Pairs chosen(Pairs index) {
    static_assert(Table::SIZE == 16, "as many as a shuffle chooses from");
    int8_t numbers[16];
    for (int i = 0; i < 16; ++i) {
        numbers[i] = static_cast<int8_t>(Table::at(i));
    }
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
    const auto signed_words = [table](__m256i words) {
        return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_shuffle_epi8(table, words), 8), 8);
    };
    return {signed_words(index.low), signed_words(index.high)};
}

#include "products/blocks_plain.inl"

struct IntSums {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
};

struct FloatSums {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
};

inline void add_bf16_product(FloatSums& sums, Pairs weights, int32_t pair) {
    const __m256i both = _mm256_set1_epi32(pair), upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const auto even = [](__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); };
    const auto odd = [upper](__m256i words) { return _mm256_castsi256_ps(_mm256_and_si256(words, upper)); };
    sums.low = _mm256_fmadd_ps(even(weights.low), even(both), sums.low);
    sums.high = _mm256_fmadd_ps(even(weights.high), even(both), sums.high);
    sums.low = _mm256_fmadd_ps(odd(weights.low), odd(both), sums.low);
    sums.high = _mm256_fmadd_ps(odd(weights.high), odd(both), sums.high);
}

inline Floats all_floats(const FloatSums& sums) {
    Floats all;
    std::memcpy(&all, &sums, sizeof all);
    return all;
}

inline void add_product(IntSums& sums, Pairs weights, int32_t pair) {
    const __m256i both = _mm256_set1_epi32(pair);
    sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(weights.low, both));
    sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(weights.high, both));
}

inline Floats floats_of(const IntSums& sums) {
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

constexpr int MOST_ROWS = 2, FEW_ROWS = 2, FEW_TILES = 1;
constexpr int UNROLLED = 4;
constexpr bool PANEL_WRITTEN_OUT = true;

#include "products/blocks_codings.inl"
#include "products/blocks_int16.inl"
#include "products/blocks_bf16.inl"

template <typename Coding>
using RowsOf = std::conditional_t<Coding::E4M3, Bf16Rows, Int16Rows>;

#include "products/blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_AVX2 = kernels();

}  // namespace tp
#endif
