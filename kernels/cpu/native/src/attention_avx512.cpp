#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention.h"
#include "attention_ahead.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace tp {
namespace {

#include "vectors.h"

#define PAIRS_ARE_MULTIPLIED  // the compiler's own macros do not follow its pragma

constexpr int TILE_ROWS = 6, SCORE_BLOCKS = 4;  // 24 sums, 4 vectors of keys and one of a query: of 32 registers
constexpr int VALUE_VECTORS = 2, WIDE_VECTORS = 4, WIDE_ROWS = 3;  // 24 sums; few queries take wide slices

#include "attention_scores.inl"
#include "attention_kept.inl"
#include "attention_values.inl"
#include "attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_AVX512[] = {KERNELS_OF<Bf16>, KERNELS_OF<Int8>};

}  // namespace tp
#endif
