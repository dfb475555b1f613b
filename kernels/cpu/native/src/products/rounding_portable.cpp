#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "products/blocks_pack.h"
#include "products/rounding.h"

namespace tp {
namespace {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

#include "products/rounding.inl"

#include "products/int4_rounding.inl"
#include "products/int8_rounding.inl"

}  // namespace

const Rounding ROUNDING_PORTABLE = {int8_block, int4_block};

}  // namespace tp
