#include <cmath>
#include <cstring>

#include "logits.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tp {
namespace {

#define REGISTER_BYTES 16
#include "vectors.h"

#include "logits_lanes.inl"

#include "logits_passes.inl"

#include "sampling_passes.inl"

}  // namespace

const LogitPasses portable_logit_passes = {peak, finite, mask, mass, count_above, split, draw};

}  // namespace tp
