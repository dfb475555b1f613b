#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "products/blocks.h"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,fma")
#include <immintrin.h>

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"
#include "products/blocks_words.inl"

// The lowest four bits of each word less OFFSET; a fifth, which chooses from the table too, belongs to the next number.
template <int OFFSET>
inline Pairs nibbles(Pairs words) {
    constexpr Pairs TABLE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                             0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Pairs table = TABLE - static_cast<int16_t>(OFFSET);
    return reinterpret_cast<Pairs>(_mm512_maskz_permutexvar_epi16(0xffffffff, reinterpret_cast<__m512i>(words),
                                                                  reinterpret_cast<__m512i>(table)));
}

inline Floats float16(const char* at) {
    return reinterpret_cast<Floats>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
}

inline __m128i load_bytes(const char* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

inline Floats bytes(const char* at) {
    return reinterpret_cast<Floats>(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, load_bytes(at))));
}

inline Floats signed_bytes(const char* at) {
    return reinterpret_cast<Floats>(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, load_bytes(at))));
}

inline void add_product(Sums& sums, Pairs weights, int32_t pair) {
    sums = reinterpret_cast<Sums>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(weights),
                                                      _mm512_set1_epi32(pair)));
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return reinterpret_cast<Floats>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
}

constexpr int MOST_ROWS = 8;  // two sums each: enough additions at a time to hide how long one takes
constexpr int UNROLLED = 8;

#include "products/blocks_codings.inl"
#include "products/blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_AVX512 = KERNELS;

}  // namespace tp
#endif
