#if defined(__x86_64__)
// Attention for processors whose multiply-adds of float32 are faster than those of bf16 pairs: see
// products/bf16_float_avx512.cpp.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention/attention.h"
#include "attention/attention_ahead.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace tp {
namespace {

#include "levels/vectors.h"

constexpr int TILE_ROWS = 6, SCORE_BLOCKS = 4;  // 24 sums, 4 vectors of keys and one of a query: of 32 registers
constexpr int VALUE_VECTORS = 2, WIDE_VECTORS = 4, WIDE_ROWS = 3;  // 24 sums; few queries take wide slices

#include "attention/attention_scores.inl"
#include "attention/attention_kept.inl"
#include "attention/attention_values.inl"
#include "attention/attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_AVX512_FLOAT[] = {KERNELS_OF<Bf16>, KERNELS_OF<Int8>};

}  // namespace tp
#endif
