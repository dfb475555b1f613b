#if defined(__x86_64__)
#include <cmath>
#include <cstdint>
#include <cstring>

#include "norms.h"
#include "turnpike.h"

#pragma GCC target("avx2,fma")

namespace tp {
namespace {

#define REGISTER_BYTES 32
#include "vectors.h"

#include "norms.inl"
#include "norms_rows.inl"

}  // namespace

void norm_rows_avx2(const Norm& norm, int64_t first, int64_t last) { norm_rows(norm, first, last); }

}  // namespace tp
#endif
