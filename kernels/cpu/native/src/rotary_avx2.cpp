#if defined(__x86_64__)
#include <cmath>
#include <cstdint>
#include <cstring>

#include "rotary.h"
#include "turnpike.h"

#pragma GCC target("avx2,fma")

namespace tp {
namespace {

#define REGISTER_BYTES 32
#include "vectors.h"

#include "norms.inl"
#include "rotary_rows.inl"

}  // namespace

void rotate_tokens_avx2(const Rotation& rotation, int64_t first, int64_t last) { rotate_tokens(rotation, first, last); }

}  // namespace tp
#endif
