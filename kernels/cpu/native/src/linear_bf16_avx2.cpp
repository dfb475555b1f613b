#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "linear_bf16.h"
#include "scalar_bf16.h"

namespace tp {
namespace {

constexpr int MOST_ROWS = 2;
constexpr int VECTORS = BLOCK_OUTPUTS / 8;

// Without products of bf16 numbers: each pair is taken apart into two float32 ones.
template <int ROWS>
void tile(const Bf16Product& product, int64_t block, int64_t row) {
    const int64_t output = block * BLOCK_OUTPUTS;
    const uint16_t* weights = product.packed + output * product.inputs;
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));

    __m256 sums[ROWS][VECTORS];
    for (auto& of_row : sums) {
        for (auto& sum : of_row) {
            sum = _mm256_setzero_ps();
        }
    }
    for (int64_t input = 0; input < product.inputs; input += 2, weights += 2 * BLOCK_OUTPUTS) {
        __m256 even[ROWS], odd[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            const uint16_t* pair = product.x + (row + r) * product.x_stride + input;
            even[r] = _mm256_set1_ps(wide(pair[0]));
            odd[r] = _mm256_set1_ps(wide(pair[1]));
        }
        for (int v = 0; v < VECTORS; ++v) {
            const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * v));
            const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
            const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
            for (int r = 0; r < ROWS; ++r) {
                sums[r][v] = _mm256_fmadd_ps(even[r], first, sums[r][v]);
                sums[r][v] = _mm256_fmadd_ps(odd[r], second, sums[r][v]);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        float of_row[BLOCK_OUTPUTS];
        std::memcpy(of_row, sums[r], sizeof of_row);
        store_row(product, of_row, row + r, output);
    }
}

}  // namespace

void bf16_block_avx2(const Bf16Product& product, int64_t block) {
    int64_t row = 0;
    for (; row + MOST_ROWS <= product.rows; row += MOST_ROWS) {
        tile<MOST_ROWS>(product, block, row);
    }
    if (row < product.rows) {
        tile<1>(product, block, row);
    }
}

}  // namespace tp
#endif
