#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "blocks_pack.h"
#include "rounding.h"

#pragma GCC target("avx2")  // without fma: it would round sums otherwise than the portable level does

namespace tp {
namespace {

#define REGISTER_BYTES 32
#include "vectors.h"

#include "rounding.inl"

#include "int4_rounding.inl"
#include "int8_rounding.inl"

}  // namespace

const Rounding ROUNDING_AVX2 = {int8_block, int4_block};

}  // namespace tp
#endif
