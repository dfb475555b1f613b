#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "products/w8a8.h"
#pragma GCC target("avx2,fma")
#include <immintrin.h>

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"

constexpr int MOST_ROWS = 4;  // two sums each of half the outputs, weights and their sizes: 14 of 16 registers
constexpr bool CORRECTED = false;

#include "products/w8a8_rows.inl"

// Weights of eight outputs: signed, and their sizes, of which 128 is one.
struct Eight {
    __m256i numbers, sizes;
};

inline Eight eight_at(const char* at) {
    const __m256i numbers = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), _mm256_set1_epi8(-128));
    return {numbers, _mm256_abs_epi8(numbers)};
}

// Products of sizes with inputs that take the weights' signs: a pair of them is at most 2 x 128 x 127 < 2^15.
inline __m256i added(__m256i sums, const Eight& weights, __m256i inputs) {
    const __m256i pairs = _mm256_maddubs_epi16(weights.sizes, _mm256_sign_epi8(inputs, weights.numbers));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int ROWS>
void add_quads(const char* weights, Rows rows, int64_t quads, Fetch fetch, Sums (&sums)[ROWS]) {
    constexpr int64_t HALF_BYTES = QUAD_BYTES / 2, REGISTER = 32;
    for (int half = 0; half < 2; ++half) {
        __m256i low[ROWS], high[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            low[r] = high[r] = _mm256_setzero_si256();
        }
        for (int64_t quad = 0; quad < quads; ++quad) {
            __builtin_prefetch(fetch.at + quad * fetch.step + half * (fetch.near ? HALF_BYTES : 0));
            const char* at = weights + quad * QUAD_BYTES + half * HALF_BYTES;
            const Eight first = eight_at(at), second = eight_at(at + REGISTER);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) {
                int32_t four;
                std::memcpy(&four, rows.first + r * rows.stride + quad * QUAD, sizeof four);
                const __m256i inputs = _mm256_set1_epi32(four);
                low[r] = added(low[r], first, inputs);
                high[r] = added(high[r], second, inputs);
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            const __m256i both[2] = {low[r], high[r]};
            std::memcpy(&sums[r][half], both, sizeof both);
        }
    }
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    Floats sums;
    for (int half = 0; half < 2; ++half) {
        const auto part = [half](const Floats& of) { return _mm256_loadu_ps(reinterpret_cast<const float*>(&of) + 8 * half); };
        _mm256_storeu_ps(reinterpret_cast<float*>(&sums) + 8 * half, _mm256_fmadd_ps(part(a), part(b), part(c)));
    }
    return sums;
}

}  // namespace

const W8A8Kernel W8A8_AVX2 = {prepare, block_of};

}  // namespace tp
#endif
