#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "attention_ahead.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace tp {
namespace {

#include "vectors.h"

#define PAIRS_ARE_TAKEN_APART  // see bf16_float_avx512.cpp
#define PAIRS_ARE_MULTIPLIED  // the compiler's own macros do not follow its pragma

#include "attention_scores.inl"
#include "attention_values.inl"
#include "attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_AVX512_FLOAT = {one_part, merge_parts, whole_tile};

}  // namespace tp
#endif
