#if defined(__x86_64__)
#include <cmath>
#include <cstring>

#include "logits.h"

#pragma GCC target("avx2,fma")
#include <immintrin.h>

#define LOGITS_AVX2

namespace tp {
namespace {

#define REGISTER_BYTES 32
#include "vectors.h"

#include "logits_lanes.inl"

#include "logits_passes.inl"

#include "sampling_passes.inl"

}  // namespace

const LogitPasses avx2_logit_passes = {peak, finite, mask, mass, count_above, split, draw};

}  // namespace tp
#endif
