#if defined(__x86_64__)
#include <cmath>
#include <cstdint>
#include <cstring>

#include "norms.h"
#include "turnpike.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace tp {
namespace {

#include "vectors.h"

#include "norms.inl"
#include "norms_rows.inl"

}  // namespace

void norm_rows_avx512(const Norm& norm, int64_t first, int64_t last) { norm_rows(norm, first, last); }

}  // namespace tp
#endif
