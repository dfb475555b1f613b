#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention.h"
#include "attention_ahead.h"

#pragma GCC target("avx2,fma")

namespace tp {
namespace {

#define REGISTER_BYTES 32
#include "vectors.h"

constexpr int TILE_ROWS = 6, SCORE_BLOCKS = 1;  // 12 sums, 2 vectors of keys and one of a query: of 16 registers
constexpr int VALUE_VECTORS = 1, WIDE_VECTORS = 2, WIDE_ROWS = 2;  // 12 sums; few queries take wide slices

#include "attention_scores.inl"
#include "attention_kept.inl"
#include "attention_values.inl"
#include "attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_AVX2[] = {KERNELS_OF<Bf16>, KERNELS_OF<Int8>};

}  // namespace tp
#endif
