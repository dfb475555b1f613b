#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "attention_ahead.h"

#pragma GCC target("avx2,fma")

namespace tp {
namespace {

#include "vectors.h"

#include "attention_scores.inl"
#include "attention_values.inl"
#include "attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_AVX2 = {one_part, merge_parts, whole_tile};

}  // namespace tp
#endif
