#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "blocks.h"
#pragma GCC target("avx2,fma")
#include <immintrin.h>

namespace tp {
namespace {

#include "vectors.h"
#include "store.h"
#include "blocks_plain.inl"

struct Two {
    __m256i low, high;
};

template <typename Vector>
inline Two halves_of(Vector vector) {
    Two two;
    std::memcpy(&two, &vector, sizeof two);
    return two;
}

template <typename Vector>
inline Vector whole_of(Two two) {
    Vector vector;
    std::memcpy(&vector, &two, sizeof vector);
    return vector;
}

inline Ints dot(Ints sums, Pairs weights, int32_t pair) {
    const Two before = halves_of(sums), two = halves_of(weights);
    const __m256i both = _mm256_set1_epi32(pair);
    return whole_of<Ints>({_mm256_add_epi32(before.low, _mm256_madd_epi16(two.low, both)),
                           _mm256_add_epi32(before.high, _mm256_madd_epi16(two.high, both))});
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
constexpr int UNROLLED = 1;

#include "blocks_codings.inl"
#include "blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_AVX2 = KERNELS;

}  // namespace tp
#endif
