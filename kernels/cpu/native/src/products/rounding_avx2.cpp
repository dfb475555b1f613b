#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "products/blocks_pack.h"
#include "products/rounding.h"

#pragma GCC target("avx2")  // without fma: it would round sums otherwise than the portable level does

namespace tp {
namespace {

#define REGISTER_BYTES 32
#include "levels/vectors.h"

#include "products/rounding.inl"

#include "products/int4_rounding.inl"
#include "products/int8_rounding.inl"

}  // namespace

const Rounding ROUNDING_AVX2 = {int8_block, int4_block};

}  // namespace tp
#endif
