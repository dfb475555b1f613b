#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "blocks_pack.h"
#include "rounding.h"

namespace tp {
namespace {

#define REGISTER_BYTES 16
#include "vectors.h"

#include "rounding.inl"

#include "int4_rounding.inl"
#include "int8_rounding.inl"

}  // namespace

const Rounding ROUNDING_PORTABLE = {int8_block, int4_block};

}  // namespace tp
