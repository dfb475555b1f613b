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
#include "products/blocks_avx512.inl"

constexpr int MOST_ROWS = 8, FEW_ROWS = 8, FEW_TILES = 2;  // two sums each, which leaves registers for totals
constexpr int UNROLLED = MOST_ROWS;
constexpr bool PANEL_WRITTEN_OUT = false;

#include "products/blocks_codings.inl"
#include "products/blocks_bf16.inl"

template <typename Coding>
using RowsOf = Bf16Rows;

#include "products/blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_BF16_AVX512 = kernels();

}  // namespace tp
#endif
