#if defined(__x86_64__)
#include <cmath>
#include <cstring>

#include "logits.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#include <immintrin.h>

#define LOGITS_AVX512

namespace tp {
namespace {

#include "vectors.h"

#include "logits_lanes.inl"

#include "logits_passes.inl"

#include "sampling_passes.inl"

}  // namespace

const LogitPasses avx512_logit_passes = {peak, finite, mask, mass, count_above, split, draw};

}  // namespace tp
#endif
