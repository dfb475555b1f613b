#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

#include "bf16.h"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <immintrin.h>

namespace tp {
namespace {

#include "vectors.h"
#include "store.h"

constexpr int PREFETCHED = 2048;

inline __m512bh load(const char* at) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(at)); }

// Adds to the sums of ROWS rows, over `count` pairs of each of PARALLEL quarters.
template <int ROWS, int PARALLEL>
inline void add_pairs(const char* weights, const uint16_t* x, int64_t x_stride, int64_t quarter, int64_t count,
                      __m512 (&sums)[PARALLEL][ROWS][2]) {
    for (int64_t pair = 0; pair < count; ++pair) {
        for (int q = 0; q < PARALLEL; ++q) {
            const char* at = weights + (q * quarter + pair) * 128;
            _mm_prefetch(at + PREFETCHED, _MM_HINT_T0);
            _mm_prefetch(at + PREFETCHED + 64, _MM_HINT_T0);
            const __m512bh first = load(at), second = load(at + 64);
            for (int r = 0; r < ROWS; ++r) {
                int32_t bits;
                std::memcpy(&bits, x + r * x_stride + 2 * (q * quarter + pair), sizeof bits);
                const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
                sums[q][r][0] = _mm512_dpbf16_ps(sums[q][r][0], first, both);
                sums[q][r][1] = _mm512_dpbf16_ps(sums[q][r][1], second, both);
            }
        }
    }
}

// PARALLEL quarters at a time: as many as there are registers for.
template <int ROWS, int PARALLEL>
void tile(const Product& product, int64_t block, int64_t row) {
    const int64_t pairs = product.weight->inputs / 2, quarter = pairs / QUARTERS;
    const auto* weights = static_cast<const char*>(product.weight->packed) + block * pairs * 128;
    const uint16_t* x = product.x + row * product.x_stride;
    __m512 of_quarter[QUARTERS][ROWS][2];
    for (int64_t q = 0; q < QUARTERS; q += PARALLEL) {
        __m512 sums[PARALLEL][ROWS][2];
        for (auto& of_one : sums) {
            for (auto& of_row : of_one) {
                of_row[0] = of_row[1] = _mm512_setzero_ps();
            }
        }
        add_pairs<ROWS, PARALLEL>(weights + q * quarter * 128, x + 2 * q * quarter, product.x_stride, quarter, quarter, sums);
        std::memcpy(of_quarter[q], sums, sizeof sums);
    }
    __m512(&last)[1][ROWS][2] = reinterpret_cast<__m512(&)[1][ROWS][2]>(of_quarter[QUARTERS - 1]);
    const int64_t done = QUARTERS * quarter;
    add_pairs<ROWS, 1>(weights + done * 128, x + 2 * done, product.x_stride, 0, pairs - done, last);
    for (int r = 0; r < ROWS; ++r) {
        Floats sums[2];
        for (int half = 0; half < 2; ++half) {
            const __m512 front = _mm512_add_ps(of_quarter[0][r][half], of_quarter[1][r][half]);
            sums[half] = reinterpret_cast<Floats>(
                _mm512_add_ps(front, _mm512_add_ps(of_quarter[2][r][half], of_quarter[3][r][half])));
        }
        store_sums(product, block, row + r, sums[0], sums[1]);
    }
}

constexpr int MOST_ROWS = 12;  // two sums each, two weights, one input: 27 of 32 registers
using Tile = void (*)(const Product&, int64_t, int64_t);
constexpr Tile TILES[MOST_ROWS + 1] = {nullptr,    tile<1, 4>, tile<2, 4>, tile<3, 4>, tile<4, 2>,  tile<5, 2>,  tile<6, 2>,
                                       tile<7, 1>, tile<8, 1>, tile<9, 1>, tile<10, 1>, tile<11, 1>, tile<12, 1>};

}  // namespace

void bf16_block_avx512(const Product& product, int64_t block) {
    const int64_t tiles = (product.rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
        const int64_t row = t * product.rows / tiles, end = (t + 1) * product.rows / tiles;
        TILES[end - row](product, block, row);
    }
}

}  // namespace tp
#endif
