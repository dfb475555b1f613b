#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "linear_bf16.h"

namespace tp {
namespace {

constexpr int MOST_ROWS = 12;  // two sums each, two weights, one input: 27 of 32 registers
constexpr int PREFETCHED = 2048;

inline __m512bh load(const char* at) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(at)); }

template <int ROWS>
void tile(const Bf16Product& product, int64_t block, int64_t row) {
    const int64_t output = block * BLOCK_OUTPUTS;
    const auto* weights = reinterpret_cast<const char*>(product.packed + output * product.inputs);
    const uint16_t* x = product.x + row * product.x_stride;
    const auto lanes = static_cast<int>(std::min<int64_t>(BLOCK_OUTPUTS, product.outputs - output));
    const __mmask16 low = lanes >= 16 ? 0xffff : (1u << lanes) - 1, high = lanes >= 16 ? (1u << (lanes - 16)) - 1 : 0;

    __m512 sums[ROWS][2];
    for (int r = 0; r < ROWS; ++r) {
        sums[r][0] = product.bias ? _mm512_maskz_loadu_ps(low, product.bias + output) : _mm512_setzero_ps();
        sums[r][1] = product.bias ? _mm512_maskz_loadu_ps(high, product.bias + output + 16) : _mm512_setzero_ps();
    }
    for (int64_t input = 0; input < product.inputs; input += 2, weights += 128) {
        _mm_prefetch(weights + PREFETCHED, _MM_HINT_T0);
        _mm_prefetch(weights + PREFETCHED + 64, _MM_HINT_T0);
        const __m512bh first = load(weights), second = load(weights + 64);
        for (int r = 0; r < ROWS; ++r) {
            int32_t bits;
            std::memcpy(&bits, x + r * product.x_stride + input, sizeof bits);
            const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], first, pair);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], second, pair);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        uint16_t* y = product.y + (row + r) * product.y_stride + output;
        _mm256_mask_storeu_epi16(y, low, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums[r][0])));
        _mm256_mask_storeu_epi16(y + 16, high, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums[r][1])));
    }
}

using Tile = void (*)(const Bf16Product&, int64_t, int64_t);
constexpr Tile TILES[MOST_ROWS + 1] = {nullptr, tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>,  tile<6>,
                                       tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};

}  // namespace

void bf16_block_avx512(const Bf16Product& product, int64_t block) {
    const int64_t tiles = (product.rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
        const int64_t row = t * product.rows / tiles, end = (t + 1) * product.rows / tiles;
        TILES[end - row](product, block, row);
    }
}

}  // namespace tp
#endif
