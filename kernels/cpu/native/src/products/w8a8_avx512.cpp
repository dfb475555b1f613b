#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "products/w8a8.h"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")
#include <immintrin.h>

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"

constexpr int MOST_ROWS = 12;  // two sums each, two weights, one input: 27 of 32 registers
constexpr bool CORRECTED = true;

#include "products/w8a8_rows.inl"

inline __m512i broadcast(const int8_t* at) {
    int32_t four;
    std::memcpy(&four, at, sizeof four);
    return _mm512_set1_epi32(four);
}

// `_mm512_dpbusd_epi32` in its place: of the intrinsic the compiler copies the sums at every step, and spills some.
inline void add_products(__m512i& sums, __m512i weights, __m512i inputs) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(inputs));
}

// ROW: 0 to ROWS - 1. Folds, not loops: what a loop indexes the compiler keeps in memory at every step.
template <_mm_hint HINT, int ROWS, int... ROW>
inline void add_all(const char* weights, Rows rows, int64_t quads, Fetch fetch, Sums (&sums)[ROWS],
                    std::integer_sequence<int, ROW...>) {
    __m512i low[ROWS], high[ROWS];
    ((low[ROW] = reinterpret_cast<__m512i>(sums[ROW][0])), ...);
    ((high[ROW] = reinterpret_cast<__m512i>(sums[ROW][1])), ...);
    for (int64_t quad = 0; quad < quads; ++quad) {
        _mm_prefetch(fetch.at + quad * fetch.step, HINT);
        if (HINT == _MM_HINT_T0) {
            _mm_prefetch(fetch.at + quad * fetch.step + 64, HINT);
        }
        const __m512i first = _mm512_loadu_si512(weights + quad * QUAD_BYTES);
        const __m512i second = _mm512_loadu_si512(weights + quad * QUAD_BYTES + QUAD_BYTES / 2);
        const auto add = [&](int row, __m512i& of_first, __m512i& of_second) __attribute__((always_inline)) {
            const __m512i inputs = broadcast(rows.first + row * rows.stride + quad * QUAD);
            add_products(of_first, first, inputs);
            add_products(of_second, second, inputs);
        };
        (add(ROW, low[ROW], high[ROW]), ...);
    }
    ((sums[ROW][0] = reinterpret_cast<Words>(low[ROW])), ...);
    ((sums[ROW][1] = reinterpret_cast<Words>(high[ROW])), ...);
}

template <int ROWS>
void add_quads(const char* weights, Rows rows, int64_t quads, Fetch fetch, Sums (&sums)[ROWS]) {
    constexpr auto EACH = std::make_integer_sequence<int, ROWS>();
    if (fetch.near) {
        add_all<_MM_HINT_T0>(weights, rows, quads, fetch, sums, EACH);
    } else {
        add_all<_MM_HINT_T1>(weights, rows, quads, fetch, sums, EACH);
    }
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return reinterpret_cast<Floats>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
}

}  // namespace

const W8A8Kernel W8A8_AVX512 = {prepare, block_of};

}  // namespace tp
#endif
