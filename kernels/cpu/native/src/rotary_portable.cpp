#include <cmath>
#include <cstdint>
#include <cstring>

#include "rotary.h"
#include "turnpike.h"

namespace tp {
namespace {

#define REGISTER_BYTES 16
#include "vectors.h"

#include "norms.inl"
#include "rotary_rows.inl"

}  // namespace

void rotate_tokens_portable(const Rotation& rotation, int64_t first, int64_t last) { rotate_tokens(rotation, first, last); }

}  // namespace tp
